import { loadConfig } from '../../config.ts'
import type { Migrated } from '../../db/database.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { command, type Noun } from '../common/noun.ts'
import { openDatabase } from '../common/open.ts'
import { withProgress } from '../common/progress.ts'
import { write, writeJson } from '../common/stdio.ts'
import { FLAG } from '../common/words.ts'

export const noun: Noun = {
  help: `  migrate [--json]                        migrate the schema to this build
`,

  run: command({ json: FLAG }, async ({ json }, env) => {
    // A migration needs no master key.
    const config = loadConfig(env)
    let migrations = 0
    const placed = await withProgress({ json, left: describeLeft(0) }, async (progress) => {
      const database = await openDatabase(config)
      const steps = {
        onMigration (number: number, total: number, statements: number) {
          migrations = total
          progress.leaves(describeLeft(number - 1))
          progress.begin(`Migration ${number} of ${total}`, 'statements', statements)
        },
        onStatement: () => progress.advance()
      }
      return database.migrate(progress.signal, { isThorough: true, steps }).finally(() => database.close())
    })
    if (!json) return write(`The schema is up to date.${placed === undefined ? '' : ` ${describePlaced(placed)}`}\n`)
    const citus = placed && { tables: placed.tables, nodes: placed.nodes, is_checked: placed.isChecked }
    return writeJson({ migrations, citus: citus ?? null })
  })
}

// Each migration is one transaction, so an interrupted migration changes nothing.
const describeLeft = (applied: number) =>
  `${applied === 0 ? 'The schema was not changed.' : `${counted(applied, 'migration')} applied.`} Run migrate again.`

function describePlaced ({ tables, nodes, isChecked }: Migrated): string {
  const set = !isChecked
    ? 'Settings were not checked: run `migrate` with the DATABASE_URL of the coordinator.'
    : nodes.length > 0 ? `Settings were set on ${nodes.join(', ')}.` : 'No setting had to be changed.'
  return `${tables} tables were placed on the nodes of the Citus cluster. ${set}`
}
