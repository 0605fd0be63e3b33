"""How the service is started and stopped: on this machine, or as a deployment on a Ray cluster. In: settings, a data
directory, certificates, and the address of a cluster. Out: processes that serve (Ray, HAProxy, replicas), credentials
of the first start, and their certain end.

Public: `bootstrap`, `cluster`, `doctor`, `join`, `listening`, `log_lines`, `processes`, `put_back`, `ray_authority`,
`ray_environment`, `ray_token`, `supervisor`, `tls`.
"""
