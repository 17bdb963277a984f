import { loadConfig } from '../../config.ts'
import type { Migrated } from '../../db/database.ts'
import { command, type Noun } from '../common/noun.ts'
import { openDatabase } from '../common/open.ts'
import { write } from '../common/stdio.ts'

export const noun: Noun = {
  help: `  migrate                                 migrate the schema to this build
`,

  run: command({}, async (_values, env) => {
    // A migration needs no master key.
    const database = await openDatabase(loadConfig(env), { creates: true })
    const placed = await database.migrate(undefined, { isThorough: true }).finally(() => database.close())
    await write(`The schema is up to date.${placed === undefined ? '' : ` ${describePlaced(placed)}`}\n`)
  })
}

function describePlaced ({ tables, nodes, isChecked }: Migrated): string {
  const set = !isChecked
    ? 'Settings were not checked: run `migrate` with the DATABASE_URL of the coordinator.'
    : nodes.length > 0 ? `Settings were set on ${nodes.join(', ')}.` : 'No setting had to be changed.'
  return `${tables} tables were placed on the nodes of the Citus cluster. ${set}`
}
