import { loadConfig } from '../../config.ts'
import { migrate } from '../common/open.ts'
import { write } from '../common/output.ts'
import type { Noun } from '../common/noun.ts'
import { parse } from '../common/words.ts'

/** `migrate` command. */
export const noun: Noun = {
  help: `  migrate                                 migrate the schema to this build
`,

  run: async (args, env) => {
    parse(args, {})
    await migrate(loadConfig(env))
    await write('The schema is up to date.\n')
    return 0
  }
}
