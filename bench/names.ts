/** Rows about single names: each is compared with the request that reads or stores the whole document. */
import type { Bench } from './keys.ts'
import { measurePairs, type Pair } from './pairs.ts'
import { startService } from './processes.ts'
import { fillLayers, getting, makeLevel, makeTenants, posting, type Tenant } from './seed.ts'

// The number of the tenant; other rows use other tenants.
const TENANT = 2101
const NAMES = 200
const PATH = 'names/backend/live/secrets'

const documentOf = (value: string) =>
  Array.from({ length: NAMES }, (_, i) => `SETTING_${i}=${i === NAMES / 2 ? value : String(i).padStart(36, '0')}`).join('\n')
// Different values, so that each request changes the document.
const VALUES = Array.from({ length: 64 }, (_, i) => String(i).padStart(36, '1'))

const ROWS = {
  change: `change one name of ${NAMES}: p50`,
  values: 'values of three levels: p50',
  shell: 'values of three levels, as a shell text: p50',
  names: 'names of three levels: p50'
}

export async function measureNames (bench: Bench): Promise<void> {
  if (!Object.values(ROWS).some(bench.wanted)) return
  const [tenant] = await makeTenants(bench.env, 1, TENANT) as [Tenant]
  const service = await startService(bench.dir, bench.env)
  try {
    await fillLayers(service.url, tenant)
    await makeLevel(service.url, tenant, 'names')
    await bench.sql`VACUUM ANALYZE`
    await measurePairs(bench, service.url, pairsOf(tenant))
  } finally {
    await service.stop()
  }
}

function pairsOf ({ id, token }: Tenant): Pair[] {
  const layers = `/api/v1/${id}/layers/backend/live/secrets`
  const merged = {
    reference: 'a merged, decrypted read', most: 1.1, other: getting(token, `${layers}?decrypt=true&merge=true`)
  }
  return [
    {
      row: ROWS.change,
      reference: 'a store of the document',
      most: 1.3,
      own: VALUES.map((value) => {
        const request = posting(token, `/api/v1/${id}/${PATH}`, { set: { [`SETTING_${NAMES / 2}`]: value } })
        return { ...request, method: 'PATCH' as const }
      }),
      other: posting(token, `/api/v1/${id}/secrets/store`, {
        project: 'names', target: 'backend', environment: 'live', plaintext: documentOf(VALUES[0]!)
      })
    },
    { ...merged, row: ROWS.values, own: getting(token, `${layers}/values`) },
    { ...merged, row: ROWS.shell, own: getting(token, `${layers}/values`, { accept: 'text/plain' }) },
    { ...merged, row: ROWS.names, own: getting(token, `${layers}/names?merge=true`) }
  ]
}
