#!/usr/bin/env bash
# jose 6.2.18 (npm): `cooldownDuration` of a remote key set holds after a successful request, and not after a failed one.
#
# `createRemoteJWKSet` waits 30 s by default before an unknown key identifier makes it request the keys again. While
# the issuer answers 500, each token makes one more request, so a service that gets many tokens sends an issuer in
# trouble as many requests. A caller who wants a pause after a failure has to remember the failure.
# Output seen: 3 requests for 3 tokens after failures, 1 request for 3 tokens after a success
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . jose@6.2.18 >/dev/null
cat > sample.mjs <<'JS'
import { createServer } from 'node:http'
import { createRemoteJWKSet, exportJWK, generateKeyPair, jwtVerify, SignJWT } from 'jose'
const { publicKey, privateKey } = await generateKeyPair('ES256')
const keys = { keys: [{ ...await exportJWK(publicKey), kid: 'known' }] }
let requests = 0, status = 500
const server = createServer((_, response) => {
  requests++
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(keys))
}).listen(0, '127.0.0.1')
await new Promise((resolve) => server.once('listening', resolve))
const url = new URL(`http://127.0.0.1:${server.address().port}/`)
for (status of [500, 200]) {
  requests = 0
  const set = createRemoteJWKSet(url)
  for (let i = 0; i < 3; i++) {
    const token = await new SignJWT({}).setProtectedHeader({ alg: 'ES256', kid: 'unknown' }).sign(privateKey)
    await jwtVerify(token, set).catch(() => {})
  }
  console.log(`${status}: ${requests}`)
}
server.close()
server.closeAllConnections()
JS
seen=$(node sample.mjs)
echo "$seen"
[ "$seen" = '500: 3
200: 1' ]
