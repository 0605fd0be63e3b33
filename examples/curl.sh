#!/usr/bin/env bash
# Makes a breaker, reports five failed calls with a signature, shows its state and its history, removes it.
# Needs curl and python3, and a running service: in the directory of `breakers serve`, or with BREAKERS_DATA_DIR set.
set -euo pipefail

file=${BREAKERS_DATA_DIR:-.breakers}/credentials.json
cred() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$file" "$1"; }
pick() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
# Keys go through files, never as arguments: those every user of the machine can read.
key() { printf 'Authorization: Bearer %s\n' "$(cred user_key)"; }
sign() {
  SECRET=$(cred ingest_secret) python3 -c '
import hashlib, hmac, os, sys
mac = hmac.new(bytes.fromhex(os.environ["SECRET"]), b"%s.%s" % tuple(arg.encode() for arg in sys.argv[1:]), hashlib.sha256)
print("X-EB-Signature: v1=" + mac.hexdigest())' "$1" "$2"
}
call() { curl --silent --show-error --fail-with-body --max-time 20 -H 'Content-Type: application/json' "$@"; }

url="$(cred base_url)/v1/projects/$(cred project_id)"

# Open when more than half of at least five samples failed; a router comes with the breaker.
made=$(call "$url/breakers" -H @<(key) -d '{
  "name": "example of curl", "metric": "latency", "kind": "error_rate", "op": "gt", "threshold": 0.5, "min_count": 5,
  "window_ms": 60000, "eval_interval_ms": 1000, "min_state_duration_ms": 0, "cooldown_ms": 60000}')
breaker=$(pick id <<<"$made")
router=$(pick router_id <<<"$made")
trap 'call -X DELETE "$url/breakers/$breaker" -H @<(key)' EXIT

bad="{\"router_id\": \"$router\", \"metric\": \"latency\", \"value\": 12, \"ok\": false}"
body="[$bad, $bad, $bad, $bad, $bad]"
now="$(date +%s)000"
call "$url/ingest" -H "X-EB-Timestamp: $now" -H @<(sign "$now" "$body") -d "$body"
echo

state=closed
for _ in $(seq 100); do
  [ "$state" = closed ] || break
  sleep 0.1
  state=$(call "$url/breakers/$breaker/state" -H @<(key) | pick state)
done
echo "$state"
call "$url/events?breaker_id=$breaker" -H @<(key)
echo
