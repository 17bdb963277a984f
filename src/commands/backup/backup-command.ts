import { loadConfig } from '../../config.ts'
import { backup, describeSummary } from './backup.ts'
import { write } from '../common/output.ts'
import type { Noun } from '../common/noun.ts'
import { parseFile, TEXTS } from '../common/words.ts'

/** `backup` command. */
export const noun: Noun = {
  help: `  backup FILE [--recipient AGE-RECIPIENT ...]
                                          back up the database to a file, encrypted if a recipient is given
`,

  run: async (args, env) => {
    const { file, values: { recipient = [] } } = parseFile('backup', args, { recipient: TEXTS })
    const made = await backup(loadConfig(env), file, recipient)
    const said = `Backed up ${describeSummary(made)}`
    // Standard output may be the backup itself.
    if (file === '-') process.stderr.write(said)
    else await write(said)
    if (made.unknown !== undefined) {
      process.stderr.write(`The backup is not recorded in the metrics, because the database could not be updated: ${made.unknown}\n`)
    }
    return 0
  }
}
