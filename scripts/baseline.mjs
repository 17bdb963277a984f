// `npm run db:baseline`: brings the baseline migration and its snapshot up to date with src/db/tables.ts. New tables
// are appended; other changes of the baseline are made by hand, before this runs
// (docs/decisions/0061-one-baseline-migration.md). Refuses once a release is tagged.
import { execFileSync } from 'node:child_process'
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const BASELINE = 'drizzle/0000_baseline.sql'
const SNAPSHOT = 'meta/0000_snapshot.json'

const released = execFileSync('git', ['tag', '--list', 'v[0-9]*'], { encoding: 'utf8' }).trim()
if (released !== '') {
  console.error('The baseline is released: write a migration with `npm run db:generate -- --name NAME`')
  process.exit(1)
}
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
