/**
 * `npm run bench:fill [-- --organizations 1000 --levels 1000000 --versions 10]`: fills the PostgreSQL of `DATABASE_URL`
 * with organizations of equally many levels and versions. The service can use the data, and `audit verify` and `drill`
 * find no errors. Uses `MASTER_KEY` or `MASTER_KEY_FILE` like the service, or generates and prints a key. Without
 * `DATABASE_URL` it fills a temporary PostgreSQL, prints time and size, and removes it. Prints a token of the first
 * organization. Refuses a database that has organizations, so after an interruption start again with an empty one.
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
