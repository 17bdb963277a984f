// Makes dist/cluster.template, which the first start of an embedded database unpacks: a cluster with the schema in it.
// To make one takes PostgreSQL's initdb, some seconds and 800 MB, so it is done here, once, and only again when what it
// is made of has changed.
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PGlite } from '@electric-sql/pglite'
import { NodeFS } from '@electric-sql/pglite/nodefs'
import { madeOf, packCluster } from '../dist/src/db/cluster.js'
import { connect } from '../dist/src/db/database.js'
import { TEMPLATE } from '../dist/src/db/embedded.js'

const hash = createHash('sha256')
const sources = [
  'node_modules/@electric-sql/pglite/package.json', 'scripts/template.mjs', 'src/db/cluster.ts',
  'src/db/embedded-worker.ts', 'src/db/migrate.ts'
]
const migrations = readdirSync('drizzle').filter((name) => name.endsWith('.sql')).sort().map((name) => join(
  'drizzle', name
))
for (const file of [...sources, ...migrations]) hash.update(file).update(readFileSync(file))
const current = hash.digest('hex')

if (madeOf(TEMPLATE) !== current) {
  const directory = mkdtempSync(join(tmpdir(), 'strongroom-template-'))
  try {
    writeFileSync(`${TEMPLATE}.new`, await makeTemplate(directory))
    renameSync(`${TEMPLATE}.new`, TEMPLATE)
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

async function makeTemplate (directory) {
  const cluster = join(directory, 'cluster')
  const made = await PGlite.create({ fs: new NodeFS(cluster) })
  // Nobody makes databases from these. They are two thirds of the files, and would one day need vacuuming.
  await made.query('UPDATE pg_database SET datistemplate = false')
  for (const name of ['template0', 'template1']) await made.query(`DROP DATABASE ${name}`)
  await made.close()
  const database = await connect({ dir: directory, pool: 1, durable: false })
  await database.migrate()
  await database.close()
  return packCluster(cluster, current)
}
