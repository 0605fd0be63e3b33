"""Every statement of the sample log on PostgreSQL, as sync functions over a connection in autocommit.

Round trips are what costs, so a call is one statement where it can be. Whoever judges by heads locks them, several in
the order of their ids; an append does so after it was judged, and takes place only if its heads still stand where they
were judged to stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from operator import itemgetter
from typing import Any

import msgspec
import psycopg

from breaker_actors.core.log_entries import VIEW, LogRecord
from breaker_actors.messages import LogRead
from breaker_actors.wal import chain
from breaker_actors.wal import faults as logfaults
from breaker_actors.wal import head as loghead
from breaker_actors.wal.base import READ_BYTES, Append, Entry, LogStock, Loss, RouterHead, StoredKey, is_full
from breaker_actors.wal.chain import Extent, Row
from breaker_actors.wal.faults import Lying
from breaker_actors.wal.head import Head, Judged

Connection = psycopg.Connection[Any]

TRIM_ROWS = 500
KEY_ROWS = 5_000
RECORD_BYTES, PAYLOAD_SHARE = 220, 16
"""What a record takes up beside its payload, in its table and its index: so many bytes, and a share of its payload
where that is cut into pieces. Measured for payloads of 30 to 170,000 bytes: the sum is right within 6 percent."""
_TAKES = 0x62726B73
"""Class of the advisory locks under which the acquisitions of a slot come one after the other."""
_NOBODY = -1
"""Epoch of a head that is only just made, to be locked."""

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_HEADS = """
SELECT router_id, epoch, owner, "offset", last_received_ms, view_offset, taken_offset, before_ms, keys_from_ms, turn,
    bytes, checksum, unchained, floor, seal
FROM log_heads WHERE slot = %(slot)s AND router_id = ANY(%(ids)s::text[])
"""
_LOCK_HEADS = f"{_HEADS} ORDER BY router_id FOR UPDATE"
_MAKE_HEADS = """
INSERT INTO log_heads SELECT %(slot)s, id, %(nobody)s, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
FROM unnest(%(ids)s::text[]) AS id
ON CONFLICT DO NOTHING
"""
_TAKE_HEADS = """
UPDATE log_heads AS h SET epoch = n.epoch, owner = n.owner, taken_offset = n.taken_offset, before_ms = n.before_ms,
    turn = n.turn, seal = n.seal
FROM unnest(%(ids)s::text[], %(epochs)s::bigint[], %(owners)s::text[], %(taken)s::bigint[], %(before)s::bigint[],
    %(turns)s::bigint[], %(seals)s::bigint[])
AS n(router_id, epoch, owner, taken_offset, before_ms, turn, seal)
WHERE h.slot = %(slot)s AND h.router_id = n.router_id
"""
_VIEWS = """
SELECT r.router_id, r."offset", r.received_ms, r.kind, r.view_offset, r.payload, r.before, r.checksum
FROM unnest(%(ids)s::text[], %(offsets)s::bigint[]) AS n(router_id, "offset")
JOIN log_records AS r ON r.slot = %(slot)s AND r.router_id = n.router_id AND r."offset" = n."offset"
"""
# The first two records at or beyond the end of each.
_ENDS = """
SELECT n.router_id, r."offset", r.checksum FROM unnest(%(ids)s::text[], %(ends)s::bigint[]) AS n(router_id, "offset")
CROSS JOIN LATERAL (
    SELECT "offset", checksum FROM log_records
    WHERE slot = %(slot)s AND router_id = n.router_id AND "offset" >= n."offset" ORDER BY "offset" LIMIT 2
) AS r ORDER BY n.router_id, r."offset"
"""
# By the primary key, router by router, whatever is known of the table; whoever asks puts them in order.
_KEYS = """
SELECT n.router_id, k.key, k."offset" FROM unnest(%(ids)s::text[], %(upto)s::bigint[]) AS n(router_id, "offset")
CROSS JOIN LATERAL (
    SELECT key, "offset" FROM log_keys
    WHERE slot = %(slot)s AND router_id = n.router_id AND "offset" > n."offset" AND received_ms > %(after_ms)s OFFSET 0
) AS k
"""
_KEYS_PAGE = """
SELECT n.router_id, k."offset", k.key, k.received_ms
FROM unnest(%(ids)s::text[], %(offsets)s::bigint[], %(keys)b::bytea[]) AS n(router_id, "offset", key)
CROSS JOIN LATERAL (
    SELECT "offset", key, received_ms FROM log_keys
    WHERE slot = %(slot)s AND router_id = n.router_id AND ("offset", key) > (n."offset", n.key)
    ORDER BY "offset", key LIMIT %(each)s
) AS k
"""
_DROP_KEYS = """
DELETE FROM log_keys WHERE slot = %(slot)s AND ctid = ANY(ARRAY(
    SELECT k.ctid FROM unnest(%(ids)s::text[], %(upto)s::bigint[]) AS n(router_id, "offset")
    CROSS JOIN LATERAL (
        SELECT ctid FROM log_keys WHERE slot = %(slot)s AND router_id = n.router_id AND "offset" <= n."offset"
        ORDER BY "offset" LIMIT %(limit)s
    ) AS k LIMIT %(limit)s
))
"""
_COUNTERS = """
SELECT router_id, series, state FROM log_counters WHERE slot = %(slot)s AND router_id = ANY(%(ids)s::text[])
"""
_NOTE_ALIVE = """
INSERT INTO log_alive AS a SELECT %(slot)s, %(owner)s, %(ms)s::bigint {where}
ON CONFLICT (slot, owner) DO UPDATE SET alive_ms = greatest(a.alive_ms, excluded.alive_ms)
"""
_FORGET_OWNERS = """
DELETE FROM log_alive AS a WHERE slot = %(slot)s AND owner <> %(owner)s
AND NOT EXISTS (SELECT FROM log_heads AS h WHERE h.slot = a.slot AND h.owner = a.owner)
"""
_ALIVE = _NOTE_ALIVE.format(where="WHERE EXISTS (SELECT FROM log_heads WHERE slot = %(slot)s AND owner = %(owner)s)")
_ANY_MINE = """WHERE EXISTS (
    SELECT FROM mine JOIN unnest(%(ids)s::text[], %(epochs)s::bigint[]) AS n(router_id, epoch) USING (router_id, epoch)
)"""
# By ids alone, so that it goes by the index whatever is known of the table: a join of all heads with all that is asked
# for takes seconds for thousands.
_PROMISE = f"""
WITH mine AS MATERIALIZED (
    SELECT router_id, epoch FROM log_heads
    WHERE slot = %(slot)s AND router_id = ANY(%(ids)s::text[]) AND owner = %(owner)s
    ORDER BY router_id FOR UPDATE
), noted AS ({_NOTE_ALIVE.format(where=_ANY_MINE)})
SELECT router_id, epoch FROM mine
"""  # nosec B608 # constants
_APPEND = """
WITH locked AS MATERIALIZED (
    SELECT h.router_id FROM log_heads AS h
    JOIN unnest(%(heads)s::text[], %(epochs)s::bigint[], %(turns)s::bigint[], %(stood)s::bigint[])
    AS n(router_id, epoch, turn, "offset")
    ON h.slot = %(slot)s AND h.router_id = n.router_id AND h.epoch = n.epoch AND h.turn = n.turn
    AND h."offset" = n."offset"
    ORDER BY h.router_id FOR UPDATE OF h
), fits AS MATERIALIZED (SELECT count(*) = cardinality(%(heads)s::text[]) AS yes FROM locked
), added AS (
    INSERT INTO log_records SELECT %(slot)s, n.* FROM unnest(
        %(ids)s::text[], %(offsets)s::bigint[], %(received)s::bigint[], %(kinds)s::smallint[], %(views)s::bigint[],
        %(payloads)b::bytea[], %(befores)s::bigint[], %(checksums)s::bigint[]
    ) AS n WHERE (SELECT yes FROM fits)
), noted AS (
    INSERT INTO log_keys SELECT %(slot)s, n.* FROM unnest(
        %(key_ids)s::text[], %(key_offsets)s::bigint[], %(keys)b::bytea[], %(key_received)s::bigint[]
    ) AS n WHERE (SELECT yes FROM fits) ON CONFLICT DO NOTHING
), dropped AS (
    DELETE FROM log_keys AS k USING unnest(%(due)s::text[], %(oldest)s::bigint[]) AS n(router_id, oldest_ms)
    WHERE k.slot = %(slot)s AND k.router_id = n.router_id AND k.received_ms <= n.oldest_ms AND (SELECT yes FROM fits)
), counted AS (
    INSERT INTO log_counters SELECT %(slot)s, n.* FROM unnest(
        %(counter_ids)s::text[], %(series)b::bytea[], %(states)b::bytea[]
    ) AS n WHERE (SELECT yes FROM fits)
    ON CONFLICT (slot, router_id, series) DO UPDATE SET state = excluded.state
), forgotten AS (
    DELETE FROM log_counters AS k USING unnest(%(gone_ids)s::text[], %(gone)b::bytea[]) AS n(router_id, series)
    WHERE k.slot = %(slot)s AND k.router_id = n.router_id AND k.series = n.series AND (SELECT yes FROM fits)
)
UPDATE log_heads AS h SET "offset" = n."offset", last_received_ms = n.received_ms, view_offset = n.view_offset,
    keys_from_ms = n.keys_from_ms, bytes = h.bytes + n.bytes, checksum = n.checksum, seal = n.seal
FROM unnest(
    %(heads)s::text[], %(ends)s::bigint[], %(stamps)s::bigint[], %(last_views)s::bigint[], %(keys_from)s::bigint[],
    %(bytes)s::bigint[], %(head_checksums)s::bigint[], %(seals)s::bigint[]
) AS n(router_id, "offset", received_ms, view_offset, keys_from_ms, bytes, checksum, seal)
WHERE h.slot = %(slot)s AND h.router_id = n.router_id AND (SELECT yes FROM fits)
"""
_STORED = """
SELECT r.router_id, r."offset", r.received_ms, r.kind, r.view_offset, r.payload
FROM unnest(%(ids)s::text[], %(offsets)s::bigint[]) AS n(router_id, "offset")
JOIN log_records AS r ON r.slot = %(slot)s AND r.router_id = n.router_id AND r."offset" = n."offset"
"""
# Of one moment: what the head says of the records, and the records.
# So far as the payloads of those before a record stay below `bytes_max`.
_READ = """
SELECT h."offset", h.floor, h.unchained, r.* FROM log_heads AS h LEFT JOIN LATERAL (
    SELECT router_id, "offset", received_ms, kind, view_offset, payload, before, checksum FROM (
        SELECT *, sum(octet_length(payload)) OVER (ORDER BY "offset" ROWS UNBOUNDED PRECEDING) AS upto_it FROM (
            SELECT * FROM log_records
            WHERE slot = %(slot)s AND router_id = %(id)s AND "offset" > %(after)s AND "offset" <= %(upto)s
            ORDER BY "offset" LIMIT %(limit)s
        ) AS found
    ) AS summed WHERE upto_it - octet_length(payload) < %(bytes_max)s
) AS r ON true WHERE h.slot = %(slot)s AND h.router_id = %(id)s ORDER BY r."offset"
"""
# Halves the range of offsets until one is left: received_ms never falls, so no index on it is needed.
_FIND = """
WITH RECURSIVE span(low, high) AS (
    SELECT 0::bigint, coalesce(max("offset"), 0) FROM log_records WHERE slot = %(slot)s AND router_id = %(id)s
    UNION ALL
    SELECT CASE WHEN probe.received_ms <= %(at_ms)s THEN probe."offset" ELSE low END,
           CASE WHEN probe.received_ms <= %(at_ms)s THEN high ELSE (low + high + 1) / 2 - 1 END
    FROM span LEFT JOIN LATERAL (
        SELECT "offset", received_ms FROM log_records
        WHERE slot = %(slot)s AND router_id = %(id)s AND "offset" >= (low + high + 1) / 2 AND "offset" <= high
        ORDER BY "offset" LIMIT 1
    ) AS probe ON true
    WHERE low < high
)
SELECT low FROM span WHERE low >= high
"""
_STOCK = 'SELECT router_id, "offset", last_received_ms, bytes FROM log_heads WHERE slot = %(slot)s ORDER BY router_id'
# The view that the first kept record refers to stays.
_TRIM = """
WITH kept AS (
    SELECT coalesce(
        (SELECT view_offset FROM log_records
         WHERE slot = %(slot)s AND router_id = %(id)s AND "offset" >= %(below)s ORDER BY "offset" LIMIT 1),
        (SELECT view_offset FROM log_heads WHERE slot = %(slot)s AND router_id = %(id)s)
    ) AS view_offset
), gone AS (
    DELETE FROM log_records WHERE slot = %(slot)s AND router_id = %(id)s AND "offset" = ANY(ARRAY(
        SELECT r."offset" FROM log_records AS r, kept
        WHERE slot = %(slot)s AND router_id = %(id)s AND r."offset" < %(below)s AND r."offset" <> kept.view_offset
        ORDER BY r."offset" LIMIT %(limit)s
    )) RETURNING %(record_bytes)s + octet_length(payload) + octet_length(payload) / %(payload_share)s AS bytes
), freed AS (SELECT count(*) AS records, coalesce(sum(bytes), 0) AS bytes FROM gone)
UPDATE log_heads AS h SET bytes = greatest(0, h.bytes - freed.bytes),
    floor = greatest(h.floor, least(%(below)s, h."offset" + 1))
FROM freed
WHERE h.slot = %(slot)s AND h.router_id = %(id)s AND freed.records > 0 RETURNING freed.records
"""
_FORGET = """
DELETE FROM {table} WHERE slot = %(slot)s AND router_id = %(id)s AND ctid = ANY(ARRAY(
    SELECT ctid FROM {table} WHERE slot = %(slot)s AND router_id = %(id)s LIMIT %(limit)s
))
"""
_FORGET_ALL = """
UPDATE log_heads SET floor = "offset" + 1 WHERE slot = %(slot)s AND router_id = %(id)s AND floor <= "offset"
"""
_FORGET_HEAD = "DELETE FROM log_heads WHERE slot = %(slot)s AND router_id = %(id)s"
_BOUNDS = """
SELECT coalesce(min("offset"), 0), coalesce(max("offset"), 0),
    coalesce(max("offset") FILTER (WHERE checksum IS NULL), 0)
FROM log_records WHERE slot = %(slot)s AND router_id = %(id)s
"""
_PAGE = """
SELECT router_id, "offset", received_ms, kind, view_offset, payload, before, checksum FROM log_records
WHERE slot = %(slot)s AND router_id = %(id)s AND "offset" > %(after)s ORDER BY "offset" LIMIT %(limit)s
"""
_LAST = """
SELECT router_id, "offset", received_ms, kind, view_offset, payload, before, checksum FROM log_records
WHERE slot = %(slot)s AND router_id = %(id)s ORDER BY "offset" DESC LIMIT 1
"""
_DROP = """
DELETE FROM log_records
WHERE slot = %(slot)s AND router_id = %(id)s AND "offset" >= %(first)s AND "offset" <= %(last)s
"""
_INSERT = """
INSERT INTO log_records VALUES (
    %(slot)s, %(router_id)s, %(offset)s, %(received_ms)s, %(kind)s, %(view_offset)s, %(payload)b, %(before)s,
    %(checksum)s
)
"""
_WHOLE = """
SELECT coalesce(max("offset") FILTER (WHERE kind = %(view)s), 0), coalesce(
    sum(%(record_bytes)s + octet_length(payload) + octet_length(payload) / %(payload_share)s), 0
) FROM log_records WHERE slot = %(slot)s AND router_id = %(id)s
"""
_SHARES = {"record_bytes": RECORD_BYTES, "payload_share": PAYLOAD_SHARE, "view": VIEW}
_TWICE = """
SELECT min("offset"), max("offset") FROM log_keys WHERE slot = %(slot)s AND router_id = %(id)s
GROUP BY key HAVING count(*) > 1 ORDER BY 1
"""
_STORE_HEAD = """
INSERT INTO log_heads (
    slot, router_id, epoch, owner, "offset", last_received_ms, view_offset, taken_offset, before_ms, keys_from_ms,
    bytes, turn, checksum, unchained, floor, seal
) VALUES (
    %(slot)s, %(router_id)s, %(epoch)s, %(owner)s, %(offset)s, %(last_received_ms)s, %(view_offset)s, %(taken_offset)s,
    %(before_ms)s, %(keys_from_ms)s, %(bytes)s, %(generation)s, %(checksum)s, %(unchained)s, %(floor)s, %(seal)s
)
"""
_SIZE = "SELECT coalesce(sum(bytes), 0)::bigint FROM log_heads WHERE slot = %(slot)s"


def acquire(
    c: Connection,
    slot: str,
    owner: str,
    routers: Sequence[tuple[str, int]],
    now_ms: int,
    keys_after_ms: int,
    keys_upto: Mapping[str, int],
) -> list[RouterHead]:
    """Puts routers under an owner incarnation; see SampleLog.acquire."""
    ids = sorted({router_id for router_id, _ in routers})
    with c.pipeline():
        c.execute(_BEGIN)
        c.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_TAKES, slot))
        c.execute(_MAKE_HEADS, {"slot": slot, "ids": ids, "nobody": _NOBODY})
        locked = c.execute(_LOCK_HEADS, {"slot": slot, "ids": ids})
        noted = c.execute("SELECT owner, alive_ms FROM log_alive WHERE slot = %s", (slot,))
    heads = {head.router_id: head for head in _heads(locked) if head.epoch != _NOBODY}
    alive: dict[str, int] = dict(noted.fetchall())
    stored, taken = dict(heads), dict[str, Head]()
    for router_id, epoch in routers:
        head = loghead.acquire(heads.get(router_id), router_id, epoch, owner, now_ms, alive)
        if head is not None:
            heads[router_id] = taken[router_id] = head
    return _store_taken(c, slot, owner, stored, list(taken.values()), keys_after_ms, keys_upto)


def _store_taken(
    c: Connection,
    slot: str,
    owner: str,
    stored: Mapping[str, Head],
    taken: Sequence[Head],
    keys_after_ms: int,
    keys_upto: Mapping[str, int],
) -> list[RouterHead]:
    """`stored`: the heads as they were found. Those of damaged logs stay so."""
    ids = [head.router_id for head in taken]
    with c.pipeline():
        offsets, ends = [head.view_offset for head in taken], [head.offset for head in taken]
        found = c.execute(_VIEWS, {"slot": slot, "ids": ids, "offsets": offsets}, binary=True)
        lying = c.execute(_ENDS, {"slot": slot, "ids": ids, "ends": ends}, binary=True)
    views = {row.router_id: row for row in map(Row._make, found)}
    last: dict[str, list[tuple[int, int | None]]] = {router_id: [] for router_id in ids}
    for router_id, offset, checksum in lying:
        last[router_id].append((offset, checksum))
    damage = {i: loghead.fault(stored.get(i), last[i], views.get(i)) for i in ids}
    heads = [head for head in taken if not damage[head.router_id]]
    values = {
        "slot": slot,
        "ids": [head.router_id for head in heads],
        "epochs": [head.epoch for head in heads],
        "owners": [head.owner for head in heads],
        "taken": [head.taken_offset for head in heads],
        "before": [head.before_ms for head in heads],
        "turns": [head.generation for head in heads],
        "seals": [head.seal for head in heads],
    }
    with c.pipeline():
        c.execute(_TAKE_HEADS, values)
        c.execute(_FORGET_OWNERS, {"slot": slot, "owner": owner})
        upto = [keys_upto.get(router_id, 0) for router_id in ids]
        kept = c.execute(_KEYS, {"slot": slot, "ids": ids, "upto": upto, "after_ms": keys_after_ms}, binary=True)
        held = c.execute(_COUNTERS, {"slot": slot, "ids": ids}, binary=True)
        c.execute("COMMIT")
    keys: dict[str, list[tuple[bytes, int]]] = {router_id: [] for router_id in ids}
    for router_id, key, offset in kept:
        keys[router_id].append((key, offset))
    for found_keys in keys.values():
        found_keys.sort(key=itemgetter(1))
    counters: dict[str, list[tuple[bytes, bytes]]] = {router_id: [] for router_id in ids}
    for router_id, series, state in held:
        counters[router_id].append((series, state))
    payloads = {router_id: row.payload for router_id, row in views.items()}
    return [
        loghead.router_head(h, payloads.get(h.router_id), keys[h.router_id], damage[h.router_id], counters[h.router_id])
        for h in taken
    ]


def keys(c: Connection, slot: str, after: Mapping[str, tuple[int, bytes]], each: int) -> dict[str, list[StoredKey]]:
    """See SampleLog.keys."""
    offsets, last = [offset for offset, _ in after.values()], [key for _, key in after.values()]
    values = {"slot": slot, "ids": list(after), "offsets": offsets, "keys": last, "each": each}
    found: dict[str, list[StoredKey]] = {router_id: [] for router_id in after}
    for router_id, *key in c.execute(_KEYS_PAGE, values, binary=True):
        found[router_id].append(StoredKey(*key))
    for some in found.values():
        some.sort()
    return found


def drop_keys(c: Connection, slot: str, upto: Mapping[str, int]) -> bool:
    """Drops up to KEY_ROWS keys of routers, up to an offset each; True: there may be more."""
    values = {"slot": slot, "ids": list(upto), "upto": list(upto.values()), "limit": KEY_ROWS}
    return c.execute(_DROP_KEYS, values).rowcount == KEY_ROWS


def _heads(rows: Iterable[Any]) -> list[Head]:
    return [Head(*row) for row in rows]


def append(c: Connection, slot: str, records: Sequence[Append], keys_ms: int, known: dict[str, Head]) -> list[bool]:
    """One transaction for all records; see SampleLog.append. `known`: where heads stood after the last call; who is
    the only one to append needs no look at them. Raises psycopg's SerializationFailure, with nothing done, when heads
    have moved meanwhile."""
    ids = sorted({record.router_id for record in records})
    stood = {id_: known[id_] for id_ in ids if id_ in known}
    judged = _judge(stood, records)
    if not all(judged.results):
        stood = {head.router_id: head for head in _heads(c.execute(_HEADS, {"slot": slot, "ids": ids}))}
        judged = _judge(stood, records)
    pairs = list(zip(judged.results, records, strict=True))
    stored = _stored(c, slot, [record for result, record in pairs if result is None])
    if judged.fresh:
        for id_ in ids:
            known.pop(id_, None)
        due = {h.router_id: ms for h in judged.moved if (ms := loghead.due_keys_ms(h, keys_ms)) is not None}
        values = {"slot": slot, **_records(judged.fresh), **_keys(judged.appends, due), **_moves(stood, judged)}
        values |= _counters(judged.appends)
        if c.execute(_APPEND, values).rowcount != len(judged.moved):
            raise psycopg.errors.SerializationFailure("another owner appends to the same routers")
        known.update((head.router_id, head) for head in judged.moved)
    return [loghead.values_of(record) in stored if result is None else result for result, record in pairs]


def _judge(heads: Mapping[str, Head], records: Sequence[Append]) -> Judged:
    """Leaves the heads where they stand."""
    return loghead.judge({id_: copy(head) for id_, head in heads.items()}, records)


def _stored(c: Connection, slot: str, records: Sequence[Append]) -> set[tuple[Any, ...]]:
    """What lies where these records would."""
    if not records:
        return set()
    places = {"slot": slot, "ids": [r.router_id for r in records], "offsets": [r.offset for r in records]}
    return set(c.execute(_STORED, places, binary=True))


def _records(rows: Sequence[Row]) -> dict[str, list[Any]]:
    names = ("ids", "offsets", "received", "kinds", "views", "payloads", "befores", "checksums")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _keys(records: Sequence[Append], due: Mapping[str, int]) -> dict[str, list[Any]]:
    """The keys to be noted, and those to be dropped: per router all that are as old as `due` (ms)."""
    kept = [(r, key) for r in records for key in r.keys if r.received_ms > due.get(r.router_id, -1)]
    return {
        "key_ids": [r.router_id for r, _ in kept],
        "key_offsets": [r.offset for r, _ in kept],
        "keys": [key for _, key in kept],
        "key_received": [r.received_ms for r, _ in kept],
        "due": list(due),
        "oldest": list(due.values()),
    }


def _counters(records: Sequence[Append]) -> dict[str, list[Any]]:
    """The last points of cumulative series to be stored, and the series to be dropped."""
    states = loghead.last_counters(records)
    kept, gone = {at: state for at, state in states.items() if state}, [at for at, state in states.items() if not state]
    return {
        "counter_ids": [router_id for router_id, _ in kept],
        "series": [series for _, series in kept],
        "states": list(kept.values()),
        "gone_ids": [router_id for router_id, _ in gone],
        "gone": [series for _, series in gone],
    }


def _moves(stood: Mapping[str, Head], judged: Judged) -> dict[str, list[Any]]:
    """From where to where heads move, and how many bytes their logs grow."""
    moved = judged.moved
    grown = dict.fromkeys((head.router_id for head in moved), 0)
    for row in judged.fresh:
        grown[row.router_id] += record_bytes(len(row.payload))
    return {
        "heads": [head.router_id for head in moved],
        "epochs": [head.epoch for head in moved],
        "turns": [head.generation for head in moved],
        "stood": [stood[head.router_id].offset for head in moved],
        "ends": [head.offset for head in moved],
        "stamps": [head.last_received_ms for head in moved],
        "last_views": [head.view_offset for head in moved],
        "keys_from": [head.keys_from_ms for head in moved],
        "bytes": list(grown.values()),
        "head_checksums": [head.checksum for head in moved],
        "seals": [head.seal for head in moved],
    }


def record_bytes(payload: int) -> int:
    """What a record with so many bytes of payload takes up, about."""
    return RECORD_BYTES + payload + payload // PAYLOAD_SHARE


def alive(c: Connection, slot: str, owner: str, now_ms: int) -> None:
    """Only who owns something here is noted: a process that was replaced must not come back into the table."""
    c.execute(_ALIVE, {"slot": slot, "owner": owner, "ms": now_ms})


def advance_watermark(
    c: Connection, slot: str, owner: str, routers: Sequence[tuple[str, int]], upto_ms: int
) -> list[bool]:
    """See SampleLog.advance_watermark. Locks the heads: who acquires one meanwhile sees the watermark, or it is not
    stored."""
    ids, epochs = [router_id for router_id, _ in routers], [epoch for _, epoch in routers]
    values = {"slot": slot, "ids": ids, "epochs": epochs, "owner": owner, "ms": upto_ms}
    mine = set(c.execute(_PROMISE, values))
    return [router in mine for router in routers]


def read(
    c: Connection, slot: str, router_id: str, after: int, upto: int, limit: int, bytes_max: int = READ_BYTES
) -> list[LogRecord]:
    wanted = {"slot": slot, "id": router_id, "after": after, "upto": upto, "limit": limit, "bytes_max": bytes_max}
    found = c.execute(_READ, wanted, binary=True).fetchall()
    if not found:
        return []
    rows = [Row(*columns[3:]) for columns in found if columns[3] is not None]

    def behind() -> Row | None:
        return next(map(Row._make, c.execute(_PAGE, wanted | {"after": upto, "limit": 1}, binary=True)), None)

    more = is_full([row.payload for row in rows], limit, bytes_max)
    return chain.verified(router_id, rows, Extent(*found[0][:3]), after, upto, None if more else behind)


def find(c: Connection, slot: str, router_id: str, at_ms: int) -> int:
    (offset,) = _one(c.execute(_FIND, {"slot": slot, "id": router_id, "at_ms": at_ms}))
    return int(offset)


def stock(c: Connection, slot: str) -> list[LogStock]:
    return [LogStock(*row) for row in c.execute(_STOCK, {"slot": slot})]


def trim(c: Connection, slot: str, router_id: str, below: int) -> int:
    """Drops up to TRIM_ROWS records below an offset, but not the view that the first kept record refers to."""
    shares = {"record_bytes": RECORD_BYTES, "payload_share": PAYLOAD_SHARE}
    values = {"slot": slot, "id": router_id, "below": below, "limit": TRIM_ROWS, **shares}
    freed = c.execute(_TRIM, values).fetchone()
    return 0 if freed is None else int(freed[0])


def forget(c: Connection, slot: str, router_id: str) -> bool:
    """Drops up to TRIM_ROWS records, keys or counters, and once there are none the head; True: there is more."""
    values = {"slot": slot, "id": router_id, "limit": TRIM_ROWS}
    c.execute(_FORGET_ALL, values)
    for table in ("log_records", "log_keys", "log_counters"):
        if c.execute(_FORGET.format(table=table), values).rowcount:
            return True
    c.execute(_FORGET_HEAD, values)
    return False


def recover(
    c: Connection,
    slot: str,
    router_id: str,
    upto: int,
    now_ms: int,
    entries: Sequence[Entry] | None,
    ahead_max_ms: int | None,
) -> list[Loss]:
    """See SampleLog.recover."""
    place = {"slot": slot, "id": router_id}
    with c.transaction():
        head = next(iter(_heads(c.execute(_LOCK_HEADS, {"slot": slot, "ids": [router_id]}))), None)
        stood = loghead.extent(head, _one(c.execute(_BOUNDS, place)))
        noted = c.execute("SELECT owner, alive_ms FROM log_alive WHERE slot = %s", (slot,))
        promised_ms = loghead.promised_ms(head, dict(noted.fetchall()))
        if is_ahead := loghead.is_ahead(head, promised_ms, now_ms, ahead_max_ms):
            promised_ms = now_ms - 1
        until_ms = max(now_ms, promised_ms + 1)
        found = list(chain.losses(_rows(c, place), router_id, stood, upto, until_ms, is_ahead))
        losses = loghead.losses(found, head, _end(c, slot, router_id, head)[1], until_ms)
        if entries is not None and (found or _head_is_wrong(c, place, head)):
            for first, row in found:
                c.execute(_DROP, place | {"first": first, "last": row.offset})
                c.execute(_INSERT, place | row._asdict())
            _renew_head(c, place, head, stood, upto, entries, promised_ms)
        return losses


def _rows(c: Connection, place: Mapping[str, Any]) -> Iterator[Row]:
    """All records of a router, a page at a time."""
    after = -1
    while page := c.execute(_PAGE, {**place, "after": after, "limit": TRIM_ROWS}, binary=True).fetchall():
        yield from map(Row._make, page)
        after = page[-1][1]


def _head_is_wrong(c: Connection, place: Mapping[str, Any], head: Head | None) -> bool:
    end, view = _end(c, place["slot"], place["id"], head)
    _, taken_up = _one(c.execute(_WHOLE, {**place, **_SHARES}))
    return bool(loghead.fault(head, end, view)) or (head is not None and head.bytes != int(taken_up))


def _end(
    c: Connection, slot: str, router_id: str, head: Head | None
) -> tuple[list[tuple[int, int | None]], Row | None]:
    """Of a router's log: offset and checksum of the records at its end and beyond it, and the view in force."""
    ids = {"slot": slot, "ids": [router_id]}
    ends = c.execute(_ENDS, ids | {"ends": [0 if head is None else head.offset]}, binary=True)
    views = c.execute(_VIEWS, ids | {"offsets": [0 if head is None else head.view_offset]}, binary=True)
    return [(offset, checksum) for _, offset, checksum in ends], next(map(Row._make, views), None)


def _renew_head(
    c: Connection,
    place: Mapping[str, Any],
    head: Head | None,
    stood: Extent,
    upto: int,
    entries: Sequence[Entry],
    promised_ms: int,
) -> None:
    """Of records that are whole; the entries come behind them."""
    c.execute(_FORGET_HEAD, place)
    lying = next(map(Row._make, c.execute(_LAST, place, binary=True)), None)
    last = loghead.last_of(head, stood, lying, place["id"], upto)
    if last is None:
        return
    shares = {**place, **_SHARES}
    view, _ = _one(c.execute(_WHOLE, shares))
    for last in chain.behind(last, int(view), entries, promised_ms):  # noqa: B020 # the last one stays
        c.execute(_INSERT, {**place, **last._asdict()})
    view, taken_up = _one(c.execute(_WHOLE, shares))
    values = msgspec.structs.asdict(loghead.recovered(stood, last, int(view), int(taken_up), promised_ms))
    c.execute(_STORE_HEAD, {**values, "slot": place["slot"]})


def faults(c: Connection, read: LogRead, now_ms: int) -> list[str]:
    """See SampleLog.faults; all of one moment."""
    slot = read.log_slot
    place, ids = {"slot": slot, "id": read.router_id}, {"slot": slot, "ids": [read.router_id]}
    c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        head = next(iter(_heads(c.execute(_HEADS, ids))), None)
        end, view = _end(c, slot, read.router_id, head)
        lying = Lying(
            head=head,
            extent=loghead.extent(head, _one(c.execute(_BOUNDS, place))),
            end=end,
            view=view,
            rows=_rows(c, place),
            twice=c.execute(_TWICE, place).fetchall(),
            size=record_bytes,
        )
        return list(logfaults.faults(lying, read, now_ms))
    finally:
        c.execute("COMMIT")


def size_bytes(c: Connection, slot: str) -> int:
    (size,) = _one(c.execute(_SIZE, {"slot": slot}))
    return int(size)


def _one(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = cursor.fetchone()
    assert row is not None
    return row
