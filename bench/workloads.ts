/** Rows about workloads: a read with their tokens, and the exchanges that make these, with cached keys. */
import { randomUUID } from 'node:crypto'
import { open } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import { JWT_BEARER } from '../schemas/oauth.ts'
import { startIssuer, type TestIssuer } from '../test/helpers/issuer.ts'
import { makeRule, tokenOf } from '../test/helpers/workloads.ts'
import type { Bench } from './keys.ts'
import type { Request } from './load.ts'
import { measurePairs, type Pair } from './pairs.ts'
import { startService } from './processes.ts'
import { fillTenants, getting, makeTenants, several, storing, type Tenant } from './seed.ts'

// The number of the tenant; other rows use other tenants.
const TENANT = 2201
// More than one client can exchange in a second.
const MAX_A_SECOND = 2_000

const ROWS = {
  read: 'workload: encrypted read: p50',
  often: 'workload: exchange: p50',
  once: 'workload: exchange with single_use: p50'
}

export async function measureWorkloads (bench: Bench): Promise<void> {
  if (!Object.values(ROWS).some(bench.wanted)) return
  const [tenant] = await makeTenants(bench.env, 1, TENANT) as [Tenant]
  const ends: (() => unknown)[] = []
  const issuer = await startIssuer({ teardown: (end) => { ends.push(end) } })
  const service = await startService(bench.dir, { ...bench.env, ...issuer.env })
  try {
    await fillTenants(service.url, [tenant])
    const pairs = await pairsOf(bench.env, tenant, issuer)
    await bench.sql`VACUUM ANALYZE`
    await measurePairs(bench, service.url, pairs)
  } finally {
    await service.stop()
    for (const end of ends) await end()
  }
}

async function pairsOf (env: Record<string, string>, tenant: Tenant, issuer: TestIssuer): Promise<Pair[]> {
  const { database } = await open(loadConfig(env))
  const [often, once] = await Promise.all([false, true].map((single_use) =>
    makeRule({ database }, tenant.id, { issuer: issuer.issuer, single_use })))
  const sign = async () => issuer.sign({ project: 'orbit', jti: randomUUID(), exp: Math.floor(Date.now() / 1000) + 3_500 })
  const token = tokenOf({ database }, often!, { ends: new Date(Date.now() + 3_600_000) })
  await database.close()
  const exchanging = (client_id: string, assertion: string): Request => ({
    method: 'POST',
    path: '/api/oauth/token',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ grant_type: JWT_BEARER, client_id, assertion })
  })
  const read = `/api/v1/${tenant.id}/orbit/backend/live/secrets`
  const store = { reference: 'a store of 4 KiB', most: 1.5, other: storing(tenant) }
  return [
    {
      row: ROWS.read, reference: 'with an API token', most: 1.1, own: getting(token, read), other: getting(tenant.token, read)
    },
    { ...store, row: ROWS.often, own: exchanging(often!.client_id, await sign()) },
    {
      ...store,
      row: ROWS.once,
      async own (seconds) {
        const requests: Request[] = []
        await several(Math.ceil(seconds * MAX_A_SECOND), async () => {
          requests.push(exchanging(once!.client_id, await sign()))
        })
        return requests
      }
    }
  ]
}
