import { readFileSync } from 'node:fs'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { PASSWORD } from '../../../schemas/users.ts'
import { isEmail } from '../../rules/formats/emails.ts'
import { initialize } from './initialize.ts'
import { StartError } from '../common/open.ts'
import { write } from '../common/output.ts'
import { withOpened, type Noun } from '../common/noun.ts'
import { FLAG, isName, parse, TEXT, UsageError } from '../common/words.ts'

/** `init` command. */
export const noun: Noun = {
  help: `  init --organization NAME --email ADDRESS [--password-stdin] [--json]
                                          create the first organization, its owner and a token
`,

  run: async (args, env) => {
    const { organization, email, 'password-stdin': passwordStdin, json } = parse(args, {
      organization: TEXT, email: TEXT, 'password-stdin': FLAG, json: FLAG
    })
    if (!isName(organization)) {
      throw new UsageError(`init needs --organization NAME (at most ${NAME_LENGTH} characters)`)
    }
    if (!isEmail(email)) throw new UsageError('init needs --email ADDRESS')
    const password = passwordStdin ? readFileSync(0, 'utf8').replace(/\r?\n$/, '') : undefined
    if (password !== undefined &&
      ([...password].length < PASSWORD.minCharacters || Buffer.byteLength(password) > PASSWORD.maxBytes)) {
      throw new UsageError(
        `The password must have at least ${PASSWORD.minCharacters} characters and at most ${PASSWORD.maxBytes} bytes`
      )
    }
    return withOpened(env, async (opened, config) => {
      const first = { organization: organization.trim(), email, password, plan: config.defaultPlan }
      const made = await initialize(opened, first)
      if (made === undefined) throw new StartError('The database is not empty: it already has an organization')
      if (json) await write(`${JSON.stringify(made)}\n`)
      else {
        await write(`Organization ${made.organization.id} (${made.organization.slug})\nOwner ${made.user.email}\n` +
          (made.user.password === undefined ? '' : `Password ${made.user.password}\n`) + `Token ${made.token}\n`)
      }
    })
  }
}
