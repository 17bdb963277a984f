import { canonicalAbilities } from '../../../schemas/scopes.ts'
import { write } from '../common/output.ts'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { addToken, describeTokens, revokeToken } from './tokens.ts'
import { change, listing, verbs, withDatabase, type Noun } from '../common/noun.ts'
import { isName, parse, TEXT, TEXTS, UsageError } from '../common/words.ts'

/** `token` command. */
export const noun: Noun = {
  help: `  token add --organization ID --name NAME [--ability SCOPE ...]
                                          create an API token and print it once; without a scope, it has all scopes
  token list                              list the API tokens of all organizations, without their values
  token revoke --id ID                    revoke an API token immediately
`,

  run: verbs('token', {
    add: async (args, env) => {
      const { organization, name, ability: spellings = ['*'] } = parse(args, {
        organization: TEXT, name: TEXT, ability: TEXTS
      })
      if (!organization) throw new UsageError('token add needs --organization ID')
      if (!isName(name)) throw new UsageError(`token add needs --name NAME (at most ${NAME_LENGTH} characters)`)
      const abilities = [...new Set(spellings.flatMap((spelling) => canonicalAbilities(spelling) ?? (() => {
        throw new UsageError(`--ability must be a scope such as secret:read, or *; ${JSON.stringify(spelling)} is not`)
      })()))]
      const held = abilities.includes('*') ? ['*' as const] : abilities
      return withDatabase(env, async (database) => {
        await write(`${await addToken(database, { organization, name: name.trim(), abilities: held })}\n`)
      })
    },

    list: listing(describeTokens),

    revoke: async (args, env) => {
      const { id: text } = parse(args, { id: TEXT })
      const id = parseId(text ?? '')
      if (id === undefined) throw new UsageError('token revoke needs --id ID')
      return change(env, (database) => revokeToken(database, id), 'Revoked.')
    }
  })
}
