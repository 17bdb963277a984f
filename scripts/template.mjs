// Makes dist/cluster.tar.gz, which the first start of an embedded database unpacks: a PostgreSQL cluster with the
// schema. initdb takes seconds and 800 MB of memory, so it runs during the build, and only if an input has changed.
import { createHash } from 'node:crypto'
import { chmodSync, existsSync, mkdtempSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PGlite } from '@electric-sql/pglite'
import { NodeFS } from '@electric-sql/pglite/nodefs'
import { create } from 'tar'
import { connect } from '../dist/src/db/database.js'
import { TEMPLATE } from '../dist/src/db/embedded/embedded.js'

const HASH = `${TEMPLATE}.inputs`

const hash = createHash('sha256')
const sources = [
  'node_modules/@electric-sql/pglite/package.json', 'scripts/template.mjs', 'src/db/embedded/embedded-worker.ts',
  'src/db/migrate.ts'
]
const migrations = readdirSync('drizzle').filter((name) => name.endsWith('.sql')).sort().map((name) => join(
  'drizzle', name
))
for (const file of [...sources, ...migrations]) hash.update(file).update(readFileSync(file))
const current = hash.digest('hex')

if (!existsSync(TEMPLATE) || !existsSync(HASH) || readFileSync(HASH, 'utf8') !== current) {
  const directory = mkdtempSync(join(tmpdir(), 'strongroom-template-'))
  try {
    await makeTemplate(directory, `${TEMPLATE}.new`)
    renameSync(`${TEMPLATE}.new`, TEMPLATE)
    writeFileSync(HASH, current)
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

async function makeTemplate (directory, file) {
  const cluster = join(directory, 'cluster')
  const made = await PGlite.create({ fs: new NodeFS(cluster) })
  // The template databases are two thirds of the files, are never used, and would need vacuuming one day.
  await made.query('UPDATE pg_database SET datistemplate = false')
  for (const name of ['template0', 'template1']) await made.query(`DROP DATABASE ${name}`)
  await made.close()
  const database = await connect({ dir: directory, pool: 1, durable: false })
  await database.migrate()
  await database.close()
  // Unpacking gives the files of an installation these modes.
  for (const entry of readdirSync(cluster, { recursive: true, withFileTypes: true })) {
    chmodSync(join(entry.parentPath, entry.name), entry.isDirectory() ? 0o700 : 0o600)
  }
  await create({ cwd: cluster, file, gzip: true, portable: true }, ['.'])
}
