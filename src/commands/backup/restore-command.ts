import { loadConfig } from '../../config.ts'
import { describeSummary, restore } from './backup.ts'
import { write } from '../common/output.ts'
import type { Noun } from '../common/noun.ts'
import { parseFile, TEXT } from '../common/words.ts'

/** `restore` command. */
export const noun: Noun = {
  help: `  restore FILE [--identity FILE]          restore a backup into an empty database
`,

  run: async (args, env) => {
    const { file, values: { identity } } = parseFile('restore', args, { identity: TEXT })
    await write(`Restored ${describeSummary(await restore(loadConfig(env), { file, identity }))}`)
    return 0
  }
}
