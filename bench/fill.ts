/**
 * `npm run bench:fill [-- --organizations 1000 --levels 1000000 --versions 10]`: fills the PostgreSQL of `DATABASE_URL`
 * with organizations of as many levels each, of so many versions each. What is in it is the service's own: it reads and
 * writes it, `audit verify` and `drill` find nothing. The master key is that of `MASTER_KEY` or `MASTER_KEY_FILE`, as
 * the service takes them, or one that is made and printed. Without `DATABASE_URL` it starts a PostgreSQL to fill, says
 * what it took, and removes it. Prints a token of the first organization. What was interrupted is begun anew, on an
 * empty database: one with organizations is left as it is.
 */
import { randomBytes } from 'node:crypto'
import { parseArgs } from 'node:util'
import { startPostgres } from '../test/helpers/postgres.ts'
import { fillDatabase, projectsOf, type Size } from './scale.ts'

try {
  const { values } = parseArgs({
    options: {
      organizations: { type: 'string', default: '1000' },
      levels: { type: 'string', default: '1000000' },
      versions: { type: 'string', default: '10' }
    }
  })
  const size: Size = {
    organizations: Number(values.organizations), levels: Number(values.levels), versions: Number(values.versions)
  }
  // Before a PostgreSQL is started for it.
  projectsOf(size)
  await fill(size)
} catch (error) {
  console.error((error as Error).message)
  process.exitCode = 1
}

async function fill (size: Size) {
  const given = Object.fromEntries(Object.entries(process.env).filter(([name, value]) =>
    /^MASTER_KEY/.test(name) && value !== '')) as Record<string, string>
  const isGiven = 'MASTER_KEY' in given || 'MASTER_KEY_FILE' in given
  const key = `bench:${randomBytes(32).toString('base64')}`
  const server = process.env.DATABASE_URL === undefined ? await startPostgres({ durable: false }) : undefined
  const interrupted = () => { server?.close().finally(() => process.exit(130)) ?? process.exit(130) }
  process.once('SIGINT', interrupted)
  try {
    const token = await fillDatabase({
      DATABASE_URL: server?.url ?? process.env.DATABASE_URL!, ...given, ...!isGiven && { MASTER_KEY: key }
    }, size)
    if (server === undefined) {
      if (!isGiven) console.log(`MASTER_KEY=${key}`)
      console.log(`token of the first organization: ${token}`)
    }
  } finally {
    process.off('SIGINT', interrupted)
    await server?.close()
  }
}
