#!/bin/sh
# Makes a certificate authority and a certificate for each node, in the directories below DIRECTORY. Keeps those that
# are there. Needs OpenSSL 3.
#
#   certificates.sh DIRECTORY NODE...
#
# authority/ca.key is needed to add a node, and must be on no node. Clients need service/ca.crt.
set -eu
umask 077
cd "$1"
shift
mkdir -p authority service

make() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -config authority/config "$@"; }

if [ ! -f authority/ca.crt ]; then
  printf '[req]\ndistinguished_name = names\n[names]\n' >authority/config
  make -subj '/CN=Strongroom nodes' -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign \
    -keyout authority/ca.key -out authority/ca.crt
fi
cp authority/ca.crt service/ca.crt
for node; do
  mkdir -p "$node"
  case $node in *[!0-9.]*) name=DNS:$node ;; *) name=IP:$node ;; esac
  # localhost: a node also connects to itself.
  [ -f "$node/node.crt" ] || make -subj "/CN=$node" -addext "subjectAltName=$name,DNS:localhost" \
    -addext basicConstraints=critical,CA:false -addext extendedKeyUsage=serverAuth \
    -CA authority/ca.crt -CAkey authority/ca.key -keyout "$node/node.key" -out "$node/node.crt"
  cp authority/ca.crt "$node/ca.crt"
  # PostgreSQL refuses a key that others can read.
  if [ "$(id -u)" = 0 ]; then chown -R postgres: "$node"; fi
  chmod 755 "$node"
done
chmod 755 service
chmod 644 service/ca.crt
