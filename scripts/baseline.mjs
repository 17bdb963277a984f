// `npm run db:baseline`: generates the snapshot of the baseline migration from src/db/tables.ts. The SQL of the
// baseline is edited by hand (docs/decisions/0061-one-baseline-migration.md).
import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'

mkdirSync('dist', { recursive: true })
const folder = mkdtempSync(join('dist', 'generated-'))
try {
  const args = ['generate', '--dialect', 'postgresql', '--schema', './src/db/tables.ts', '--out', folder]
  execFileSync(process.execPath, ['node_modules/.bin/drizzle-kit', ...args], { stdio: 'inherit' })
  copyFileSync(join(folder, 'meta', '0000_snapshot.json'), join('drizzle', 'meta', '0000_snapshot.json'))
} finally {
  rmSync(folder, { recursive: true })
}
