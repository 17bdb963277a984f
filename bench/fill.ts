/**
 * `npm run bench:fill [-- --organizations 1000 --levels 1000000 --versions 10]`: fills the PostgreSQL of `DATABASE_URL`
 * with organizations that have equally many levels and versions, and prints a token of the first organization. The
 * service can use the data, and `audit verify` and `drill` find no errors. Uses `MASTER_KEY` or `MASTER_KEY_FILE` like
 * the service, or generates and prints a key. Without `DATABASE_URL`, fills a temporary PostgreSQL, prints time and
 * size, and removes the database. Refuses a database that has organizations: after an interruption, use an empty one.
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
  // Validates the size before a PostgreSQL is started.
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
