import { loadKeyCommands } from '../../config.ts'
import { ID_PATTERN, makeKeyId } from '../../crypto/keyring.ts'
import { execProvider, makeWrappedKey } from '../common/key-provider.ts'
import { write } from '../common/output.ts'
import { verbs, type Noun } from '../common/noun.ts'
import { parse, TEXT, UsageError } from '../common/words.ts'

/** `key` command. */
export const noun: Noun = {
  help: `  key new [--id ID]                       print a new master key, wrapped by MASTER_KEY_WRAP_COMMAND
`,

  run: verbs('key', {
    new: async (args, env) => {
      const { id = makeKeyId() } = parse(args, { id: TEXT })
      if (!ID_PATTERN.test(id)) throw new UsageError('--id must be 1 to 32 letters, digits, ".", "_" or "-"')
      await write(`${await makeWrappedKey(execProvider(loadKeyCommands(env)), id)}\n`)
      return 0
    }
  })
}
