import { loadConfig } from '../../config.ts'
import { open } from '../common/open.ts'
import { write } from '../common/output.ts'
import { report, rewrap } from './rewrap.ts'
import type { Noun } from '../common/noun.ts'
import { parse } from '../common/words.ts'

/** `rewrap` command. */
export const noun: Noun = {
  help: `  rewrap                                  re-wrap every stored key with the newest master key
`,

  run: async (args, env) => {
    parse(args, {})
    const opened = await open(loadConfig(env))
    try {
      const outcome = await rewrap(opened)
      for (const line of outcome.failures) process.stderr.write(`${line}\n`)
      await write(report(outcome, opened.keyring.currentId))
      return outcome.failures.length > 0 || outcome.older.some(({ values }) => values > 0) ? 1 : 0
    } finally {
      await opened.database.close()
    }
  }
}
