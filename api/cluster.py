"""The import path that a KubeRay file names, `api.cluster:app`; it is made in `api/launch/cluster.py`."""

from api.launch.cluster import app

__all__ = ["app"]
