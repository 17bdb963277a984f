/**
 * `npm run bench:fill [-- --organizations 1000 --levels 1000000 --versions 10]`: fills the PostgreSQL of `DATABASE_URL`
 * under `MASTER_KEY`, both as the service takes them, with organizations of as many levels each, of so many versions
 * each. What is in it is the service's own: it reads and writes it, `audit verify` and `drill` find nothing. Without
 * `DATABASE_URL` it starts a PostgreSQL to fill, says what it took, and removes it. Prints a token of the first
 * organization. What was interrupted is begun anew, on an empty database: one with organizations is refused.
 */
import { randomBytes } from 'node:crypto'
import { parseArgs } from 'node:util'
import { startPostgres } from '../test/helpers/postgres.ts'
import { fillDatabase } from './scale.ts'

const { values } = parseArgs({
  options: {
    organizations: { type: 'string', default: '1000' },
    levels: { type: 'string', default: '1000000' },
    versions: { type: 'string', default: '10' }
  }
})
const [organizations, levels, versions] = [values.organizations, values.levels, values.versions].map(Number) as
  [number, number, number]
const server = process.env.DATABASE_URL === undefined ? await startPostgres({ durable: false }) : undefined
try {
  await fillDatabase({
    DATABASE_URL: server?.url ?? process.env.DATABASE_URL!,
    MASTER_KEY: process.env.MASTER_KEY ?? `bench:${randomBytes(32).toString('base64')}`
  }, { organizations, levels, versions })
} finally {
  await server?.close()
}
