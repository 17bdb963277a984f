import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { isRegistrable } from '../../rules/redirects.ts'
import { addClient, CLIENT_ID, describeClients, switchClient } from './clients.ts'
import { change, listing, verbs, type Environment, type Noun } from '../common/noun.ts'
import { isName, parse, TEXT, TEXTS, UsageError } from '../common/words.ts'

/** `client` command. */
export const noun: Noun = {
  help: `  client add --id ID --name NAME --redirect-uri URI [--redirect-uri URI ...]
                                          register an OAuth client
  client disable --id ID                  disable a client and revoke its grants
  client enable --id ID                   enable a client again
  client list                             list every client: id, state, name, redirect URIs
`,

  run: verbs('client', {
    add: async (args, env) => {
      const { id, name, 'redirect-uri': uris = [] } = parse(args, { id: TEXT, name: TEXT, 'redirect-uri': TEXTS })
      if (id === undefined || !CLIENT_ID.test(id)) {
        throw new UsageError(
          'client add needs --id ID: 1 to 64 of a-z, 0-9, ".", "_" and "-", beginning with a letter or digit'
        )
      }
      if (!isName(name)) throw new UsageError(`client add needs --name NAME (at most ${NAME_LENGTH} characters)`)
      if (uris.length === 0) throw new UsageError('client add needs --redirect-uri URI')
      const wrong = uris.find((uri) => !isRegistrable(uri))
      if (wrong !== undefined) {
        throw new UsageError(`${JSON.stringify(wrong)} cannot be a redirect URI; allowed: https://…, http:// with 127.0.0.1, [::1] or localhost, or an app scheme as in com.example.app:/callback; ` +
          'without wildcard, fragment or user')
      }
      return change(env, (database) =>
        addClient(database, { id, name: name.trim(), redirect_uris: [...new Set(uris)] }), 'Added.')
    },

    disable: async (args, env) => switchApplication('disable', args, env),
    enable: async (args, env) => switchApplication('enable', args, env),

    list: listing(describeClients)
  })
}

async function switchApplication (verb: 'disable' | 'enable', args: string[], env: Environment): Promise<number> {
  const { id } = parse(args, { id: TEXT })
  if (!id) throw new UsageError(`client ${verb} needs --id ID`)
  return change(env, (database) => switchClient(database, id, verb === 'disable'))
}
