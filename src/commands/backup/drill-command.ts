import { loadConfig } from '../../config.ts'
import { drill } from './drill.ts'
import { lineOf } from '../common/open.ts'
import { write } from '../common/output.ts'
import type { Noun } from '../common/noun.ts'
import { parseFile, TEXT } from '../common/words.ts'

/** `drill` command. */
export const noun: Noun = {
  help: `  drill FILE [--identity FILE] [--anchors LOG]
                                          test-restore a backup: decrypt everything, verify the audit log
`,

  run: async (args, env) => {
    const { file, values: { identity, anchors } } = parseFile('drill', args, { identity: TEXT, anchors: TEXT })
    // Exit status 1 means a faulty backup; errors that prevent the drill use 2.
    try {
      return await drill(loadConfig(env), { file, identity, anchors }, {
        say: write,
        warn: (line) => process.stderr.write(line)
      })
    } catch (error) {
      process.stderr.write(`${lineOf(error)}\n`)
      return 2
    }
  }
}
