/**
 * `node dist/bench/openbao.js BAO [--rounds 10 --seconds 2 --only WORD]`: this service in turns with OpenBao, whose
 * program is BAO. Both keep their data in a database of their own on one PostgreSQL, and record each request in their
 * audit log: OpenBao in a file, with values as hashes. OpenBao has one engine `kv` of version 2 for each organization,
 * and keeps ten versions of a document, and a token that may read and write all of them.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { freePort, startPostgres } from '../test/helpers/postgres.ts'
import { startLoad, type Request } from './load.ts'
import { createDatabase, preparePlace, printRows, roundsOf, TENANTS, type Place, type PlaceRow } from './places.ts'
import { cpuWithChildren } from './processes.ts'
import { DOCUMENT, getting, LEVEL, posting, send, storing, type Tenant } from './seed.ts'

const { values, positionals: [program] } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: 'string', default: '10' },
    seconds: { type: 'string', default: '2' },
    only: { type: 'string', default: '' }
  }
})
const options = { only: values.only, ...roundsOf(values) }
if (program === undefined || !fs.existsSync(program)) throw new Error('Give the path of the program `bao`')

const LEVEL_PATH = `${LEVEL.project}/${LEVEL.target}/${LEVEL.environment}`
const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'strongroom-bench-'))
const load = startLoad()
const server = await startPostgres()
try {
  const own = await preparePlace(dir, { DATABASE_URL: await createDatabase(server.url, 'own'), DATABASE_POOL: '10' })
  const other = await startOpenBao(program, await createDatabase(server.url, 'other'))
  const both = (ofOwn: (tenant: Tenant) => Request, ofOther: (tenant: Tenant) => Request, count = 1) =>
    (place: Place) => place.tenants.slice(0, count).map((tenant) => place === other ? ofOther(tenant) : ofOwn(tenant))
  const reading = (more: string) => both(
    ({ id, token }) => getting(token, `/api/v1/${id}/${LEVEL_PATH}/secrets${more}`),
    ({ id, token }) => getting(token, `/v1/${id}/data/${LEVEL_PATH}`))
  const storingAll = (count: number) => both((tenant) => storing(tenant), storingAtOpenBao, count)
  const alone = { connections: 1 }
  const rows: PlaceRow[] = [
    { row: 'encrypted read', requests: reading('') },
    { row: 'encrypted read, 1 connection: p50', requests: reading(''), ...alone },
    { row: 'decrypted read', requests: reading('?decrypt=true') },
    { row: 'decrypted read, 1 connection: p50', requests: reading('?decrypt=true'), ...alone },
    { row: `store, ${TENANTS} organizations`, requests: storingAll(TENANTS) },
    { row: 'store, one organization', requests: storingAll(1) },
    { row: 'store, 1 connection: p50', requests: storingAll(1), ...alone }
  ]
  await printRows(load, rows, { own, other }, 'OpenBao', options)
} finally {
  load.close()
  await server.close()
  fs.rmSync(dir, { recursive: true, force: true })
}

function storingAtOpenBao ({ id, token }: Tenant): Request {
  return posting(token, `/v1/${id}/data/${LEVEL_PATH}`, { data: { document: DOCUMENT } })
}

interface Initialized { keys: string[], root_token: string }

/** An OpenBao with an engine for each organization, which has one document. */
async function startOpenBao (program: string, databaseUrl: string): Promise<Place> {
  const port = await freePort()
  const url = `http://127.0.0.1:${port}`
  const config = path.join(dir, 'openbao.hcl')
  fs.writeFileSync(config, `
    storage "postgresql" {
      connection_url = "${databaseUrl}"
      # By default it keeps two connections, and opens one for each request beyond them.
      max_idle_connections = "64"
    }
    listener "tcp" {
      address = "127.0.0.1:${port}"
      tls_disable = true
    }
    audit "file" "all" { options { file_path = "${path.join(dir, 'openbao-audit.log')}" } }
    api_addr = "${url}"`)
  const log = fs.openSync(path.join(dir, 'openbao.log'), 'a')
  const child = spawn(program, ['server', '-config', config], { stdio: ['ignore', log, log] })
  fs.closeSync(log)
  while (!await fetch(`${url}/v1/sys/health`).then(() => true, () => false)) {
    if (child.exitCode !== null) throw new Error(fs.readFileSync(path.join(dir, 'openbao.log'), 'utf8').slice(-1_000))
    await pause(50)
  }
  const put = (path: string, body: object, token = '') => send(url, posting(token, `/v1/${path}`, body))
  const { keys, root_token: root } = await put('sys/init', { secret_shares: 1, secret_threshold: 1 }) as Initialized
  await put('sys/unseal', { key: keys[0] })
  while (!(await fetch(`${url}/v1/sys/health`)).ok) await pause(50)
  const tenants: Place['tenants'] = Array.from({ length: TENANTS }, (_, i) => ({ id: `tenant-${i}`, token: '' }))
  const policy = tenants.map(({ id }) => `path "${id}/*" { capabilities = ["create", "read", "update"] }`).join('\n')
  await put('sys/policies/acl/all', { policy }, root)
  const { auth } = await put('auth/token/create', { policies: ['all'], no_default_policy: true }, root) as
    { auth: { client_token: string } }
  for (const tenant of tenants) {
    tenant.token = auth.client_token
    await put(`sys/mounts/${tenant.id}`, { type: 'kv', options: { version: '2' } }, root)
  }
  for (const tenant of tenants) {
    const request = storingAtOpenBao(tenant)
    // A new engine of version 2 refuses requests until it has upgraded itself.
    while (!await send(url, request).then(() => true, () => false)) await pause(50)
  }
  return {
    url,
    tenants,
    versions: [],
    cpu: () => cpuWithChildren(child.pid!),
    async stop () {
      const gone = once(child, 'exit')
      child.kill('SIGTERM')
      await gone
    }
  }
}
