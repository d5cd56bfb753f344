#!/bin/sh
# Makes what the other containers read, once: the fleet's certificates, the broker's files, the configuration and
# the password of PostgreSQL. A second run leaves what is there and brings the list of what is revoked up to date.
set -eu
umask 077
: "${GEARTRAIN_ADDRESS:?give the name or address by which devices reach this machine}"
state=${GEARTRAIN_STATE:-/var/lib/geartrain-platform}
broker=${GEARTRAIN_BROKER:-/var/lib/geartrain-broker}
secrets=${GEARTRAIN_SECRETS:-/var/lib/geartrain-secrets}
mqtt_port=${GEARTRAIN_MQTT_PORT:-8883}
device_port=${GEARTRAIN_DEVICE_PORT:-8443}
certs=$state/certs
role=geartrain

# What a run that was ended has half made is made again: each file appears whole.
put() {
    cat >"$1.new"
    mv "$1.new" "$1"
}

[ -f "$certs/ca.pem" ] || gear certs init --certs "$certs" --fleet "$GEARTRAIN_ADDRESS"
[ -f "$certs/server/$GEARTRAIN_ADDRESS.pem" ] ||
    gear certs issue server "$GEARTRAIN_ADDRESS" --certs "$certs" --host localhost --host 127.0.0.1
for name in ingest down control; do
    [ -f "$certs/cloud/$name.pem" ] || gear certs issue cloud "$name" --certs "$certs"
done
gear broker config "$GEARTRAIN_ADDRESS" --certs "$certs" --output "$broker" --listen "$mqtt_port" --user root

if [ ! -f "$secrets/postgres_password" ]; then
    python3 -c 'import secrets; print(secrets.token_urlsafe(32))' | put "$secrets/postgres_password"
fi
printf '*:*:geartrain:%s:%s\n' "$role" "$(cat "$secrets/postgres_password")" | put "$state/pgpass"

put "$state/platform.toml" <<TOML
broker = "$GEARTRAIN_ADDRESS:$mqtt_port"
broker_certs = "certs"

[control]
host = "${GEARTRAIN_LISTEN:-0.0.0.0}"
port = ${GEARTRAIN_PORT:-8764}
tls = true

[fleet]
address = "$GEARTRAIN_ADDRESS"
device_port = $device_port

[tables]
store = "postgresql://$role@${GEARTRAIN_POSTGRES:-postgres}/geartrain?passfile=$state/pgpass"
TOML
put "$state/ingest.toml" <<TOML
[broker]
address = "$GEARTRAIN_ADDRESS:$mqtt_port"
tls = true
ca = "certs/ca.pem"
certificate = "certs/cloud/ingest.pem"
key = "certs/cloud/ingest.key"

[log]
folder = "log"
TOML
