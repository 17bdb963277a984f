import { loadConfig } from '../../config.ts'
import { serve } from './serve.ts'
import type { Noun } from '../common/noun.ts'
import { parse } from '../common/words.ts'

/** `serve` command. */
export const noun: Noun = {
  help: `  serve                                   migrate the schema and serve (variables: docs/operations/variables.md)
`,

  run: async (args, env) => {
    parse(args, {})
    return serve(loadConfig(env))
  }
}
