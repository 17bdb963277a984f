import { loadConfig } from '../../config.ts'
import { backup, describeSummary } from './backup.ts'
import { write } from '../common/output.ts'
import type { Noun } from '../common/noun.ts'
import { parseFile, TEXTS } from '../common/words.ts'

/** `backup` command. */
export const noun: Noun = {
  help: `  backup FILE [--recipient AGE-RECIPIENT ...]
                                          everything into a file, encrypted when a recipient is given
`,

  run: async (args, env) => {
    const { file, values: { recipient = [] } } = parseFile('backup', args, { recipient: TEXTS })
    const made = await backup(loadConfig(env), file, recipient)
    const said = `Backed up ${describeSummary(made)}`
    // Standard output may be the backup itself.
    if (file === '-') process.stderr.write(said)
    else await write(said)
    if (made.unknown !== undefined) {
      process.stderr.write(`The metrics do not know of it, for the database could not be told: ${made.unknown}\n`)
    }
    return 0
  }
}
