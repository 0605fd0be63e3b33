"""The tables of the sample log on PostgreSQL, as the migrations end at them; `pgrecords.py` has the statements."""

from __future__ import annotations

from sqlalchemy import DDL, BigInteger, Column, LargeBinary, MetaData, SmallInteger, Table, Text, event

from breaker_actors.store import tables

metadata = MetaData(naming_convention=tables.metadata.naming_convention)

# Byte order: faster to compare, and an index does not break when a system library changes how it sorts.
_Name = Text(collation="C")

records = Table(
    "log_records",
    metadata,
    Column("slot", _Name, primary_key=True),
    Column("router_id", _Name, primary_key=True),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("received_ms", BigInteger, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("view_offset", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("before", BigInteger),
    Column("checksum", BigInteger),
)

# Not compressed: that took 7 of the 10 ms of an append of 170 kB, and saved a third.
_uncompressed = DDL("ALTER TABLE log_records ALTER payload SET STORAGE EXTERNAL")  # type: ignore[no-untyped-call]
event.listen(records, "after_create", _uncompressed)

# Changed with every append: with room in its pages a new version of a row goes beside the old one, not into the index.
heads = Table(
    "log_heads",
    metadata,
    Column("slot", _Name, primary_key=True),
    Column("router_id", _Name, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", _Name, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("last_received_ms", BigInteger, nullable=False),
    Column("view_offset", BigInteger, nullable=False),
    Column("taken_offset", BigInteger, nullable=False),
    Column("before_ms", BigInteger, nullable=False),
    Column("keys_from_ms", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("unchained", BigInteger, nullable=False),
    Column("floor", BigInteger, nullable=False),
    Column("seal", BigInteger, nullable=False),
    postgresql_with={"fillfactor": 50},
)

keys = Table(
    "log_keys",
    metadata,
    Column("slot", _Name, primary_key=True),
    Column("router_id", _Name, primary_key=True),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("key", LargeBinary, primary_key=True),
    Column("received_ms", BigInteger, nullable=False),
)

counters = Table(
    "log_counters",
    metadata,
    Column("slot", _Name, primary_key=True),
    Column("router_id", _Name, primary_key=True),
    Column("series", LargeBinary, primary_key=True),
    Column("state", LargeBinary, nullable=False),
    postgresql_with={"fillfactor": 50},
)

alive = Table(
    "log_alive",
    metadata,
    Column("slot", _Name, primary_key=True),
    Column("owner", _Name, primary_key=True),
    Column("alive_ms", BigInteger, nullable=False),
)
