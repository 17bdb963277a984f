import { loadConfig } from '../../config.ts'
import { migrate } from '../open.ts'
import { write } from '../output.ts'
import type { Noun } from './noun.ts'
import { parse } from './words.ts'

/** `migrate` and what it takes. */
export const noun: Noun = {
  help: `  migrate                                 bring the schema up to date
`,

  run: async (args, env) => {
    parse(args, {})
    await migrate(loadConfig(env))
    await write('The schema is up to date.\n')
    return 0
  }
}
