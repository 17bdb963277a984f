import { loadKeyCommands } from '../../config.ts'
import { ID_PATTERN, makeKeyId } from '../../crypto/keyring.ts'
import { execProvider, makeWrappedKey } from '../common/key-provider.ts'
import { command, verbs, type Noun } from '../common/noun.ts'
import { write } from '../common/stdio.ts'
import { fail, TEXT } from '../common/words.ts'

export const noun: Noun = {
  help: `  key new [--id ID]                       print a new master key, wrapped by MASTER_KEY_WRAP_COMMAND
`,

  run: verbs('key', {
    new: command({ id: TEXT }, async ({ id = makeKeyId() }, env) => {
      if (!ID_PATTERN.test(id)) fail('--id must be 1 to 32 letters, digits, ".", "_" or "-"')
      await write(`${await makeWrappedKey(execProvider(loadKeyCommands(env)), id)}\n`)
    })
  })
}
