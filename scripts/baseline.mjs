// `npm run db:baseline`: brings the baseline migration, its snapshot and examples/citus.sql up to date with
// src/db/tables.ts. New tables are appended; other changes of the baseline are made by hand, before this runs
// (docs/decisions/0061-one-baseline-migration.md).
import { execFileSync } from 'node:child_process'
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const BASELINE = 'drizzle/0000_baseline.sql'
const SNAPSHOT = 'meta/0000_snapshot.json'
const CITUS = 'examples/citus.sql'

mkdirSync('dist', { recursive: true })
const folder = mkdtempSync(join('dist', 'generated-'))
try {
  const baseline = readFileSync(BASELINE, 'utf8')
  // What is missing in the baseline, and a snapshot without a predecessor.
  const [changed, fresh] = [join(folder, 'changed'), join(folder, 'fresh')]
  cpSync('drizzle', changed, { recursive: true })
  generate(changed)
  generate(fresh)
  const added = Object.values(JSON.parse(readFileSync(join(fresh, SNAPSHOT), 'utf8')).tables)
    .filter(({ name }) => !baseline.includes(`CREATE TABLE ${name} (`))
  const isOfAdded = (statement) => added.some(({ name }) =>
    new RegExp(`^(?:CREATE TABLE|ALTER TABLE|CREATE (?:UNIQUE )?INDEX \\S+ ON) ${name} `).test(statement))
  const [own, others] = [[], []]
  for (const statement of statementsIn(changed)) (isOfAdded(statement) ? own : others).push(statement)
  if (own.length > 0) {
    writeFileSync(BASELINE, `${baseline}--> statement-breakpoint\n\n${own.join('\n')}\n`)
  }
  place(added.filter(({ columns }) => 'organization_id' in columns).map(({ name }) => name))
  if (own.length + others.length > 0) copyFileSync(join(fresh, SNAPSHOT), join('drizzle', SNAPSHOT))
  if (others.length > 0) console.log(`Add these statements to ${BASELINE} by hand:\n${others.join('\n')}`)
} finally {
  rmSync(folder, { recursive: true })
}

function generate (out) {
  const args = ['generate', '--dialect', 'postgresql', '--schema', './src/db/tables.ts', '--out', out]
  execFileSync(process.execPath, ['node_modules/.bin/drizzle-kit', ...args], { stdio: ['inherit', 'ignore', 'inherit'] })
}

// The statements of the migration that drizzle-kit added, in the style of the baseline: no name needs quotes.
function statementsIn (migrations) {
  const [added] = readdirSync(migrations).filter((name) => name.endsWith('.sql') && name !== '0000_baseline.sql')
  if (added === undefined) return []
  return readFileSync(join(migrations, added), 'utf8').split('--> statement-breakpoint').map((statement) =>
    statement.trim().replaceAll('"public".', '').replaceAll('"', '').replaceAll('\t', '  ').replace(' USING btree', ''))
}

// Tables of organizations are distributed by them, after the tables that they reference.
function place (tables) {
  const lines = readFileSync(CITUS, 'utf8').split('\n')
  const missing = tables.filter((table) => !lines.some((line) => line.includes(`'${table}'`))).map((table) =>
    `SELECT create_distributed_table('${table}', 'organization_id', colocate_with => 'organization_counters');`)
  const last = lines.findLastIndex((line) => line.startsWith('SELECT create_distributed_table('))
  if (missing.length > 0) writeFileSync(CITUS, lines.toSpliced(last + 1, 0, ...missing).join('\n'))
}
