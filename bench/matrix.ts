/**
 * Rows about the matrix of a project with 1,000 names in 10 levels: the time of a request, and the longest time on the
 * event loop. The service runs in this process, which measures the event loop; another process sends the load.
 */
import { blocksOf, withServiceHere } from './event-loop.ts'
import type { Bench } from './keys.ts'
import { getting, posting, send, type Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const NAMES = 1000
const TARGETS = 3
const ENVIRONMENTS = 2
/** Maximum time of a request, and of the event loop, in milliseconds. */
const BARS = { time: 300, block: 50 }

const CASES = { 'all names': '', 'names that are missing': '?only=missing', 'names that differ': '?only=different' }

const rowOf = (which: string, what: string) => `matrix of 1,000 names in 10 levels, ${which}, ${what}`

export async function measureMatrix (bench: Bench): Promise<void> {
  const { env, tenants, lines, wanted } = bench
  const cases = (Object.keys(CASES) as (keyof typeof CASES)[]).filter((which) =>
    wanted(rowOf(which, 'time')) || wanted(rowOf(which, 'block')))
  if (cases.length === 0) return
  const tenant = tenants[0]!
  await withServiceHere(env, async (url) => {
    await fill(url, tenant)
    for (const which of cases) {
      const request = getting(tenant.token, `/api/v1/${tenant.id}/compared/secrets/matrix${CASES[which]}`)
      const { times, longest } = await blocksOf(bench, url, [request], 1)
      for (const [what, values, bar] of [
        ['time', times, BARS.time], ['longest time on the event loop', longest, BARS.block]
      ] as const) {
        const row = rowOf(which, what)
        const figure = median(values)
        lines.push({ row, reference: 'what is asked for', ...compare(figure, bar, ' ms', 1), bar: { most: 1 } })
        console.log(`${row}: ${figure.toFixed(1)} ms`)
      }
    }
  })
}

/** A project with three targets of two environments each; every level has the names, some of them with other values. */
async function fill (url: string, { id, token }: Tenant) {
  const post = (path: string, body: object) => send(url, posting(token, `/api/v1/${id}${path}`, body))
  const project = 'compared'
  await post('/projects', { name: 'Compared', slug: project })
  const store = (level: object, number: number) =>
    post('/secrets/store', { project, ...level, plaintext: documentOf(number) })
  await store({}, 0)
  for (let i = 0; i < TARGETS; i++) {
    const target = `target-${i}`
    await post(`/${project}/targets`, { name: target, slug: target })
    await store({ target }, 1 + i)
    for (let j = 0; j < ENVIRONMENTS; j++) {
      const environment = `environment-${j}`
      await post(`/${project}/${target}/environments`, { name: environment, slug: environment })
      await store({ target, environment }, 4 + i * ENVIRONMENTS + j)
    }
  }
}

const documentOf = (level: number) => Array.from({ length: NAMES }, (_, i) =>
  (i + level) % 10 === 0 ? '' : `SETTING_${i}=${String(i % 3 === 0 ? level : i).padStart(36, '0')}\n`).join('')
