import { loadConfig } from '../../config.ts'
import { command, type Noun } from '../common/noun.ts'
import { openDatabase } from '../common/open.ts'
import { write } from '../common/stdio.ts'

export const noun: Noun = {
  help: `  migrate                                 migrate the schema to this build
`,

  run: command({}, async (_values, env) => {
    // A migration needs no master key.
    const database = await openDatabase(loadConfig(env))
    await database.migrate().finally(() => database.close())
    await write('The schema is up to date.\n')
  })
}
