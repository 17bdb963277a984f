import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import { transaction } from '../../changes/transaction.ts'
import type { Database, Db } from '../../db/database.ts'
import { endingOf } from '../../db/callers/grants.ts'
import { recordOfPerson } from '../../changes/late.ts'
import { operatorOf } from '../../repositories/audit/audit.ts'
import { createClient, listClients, revokeGrantsOfClient, setClientDisabled } from '../../repositories/people/oauth.ts'
import { isRegistrable } from '../../rules/redirects.ts'
import { endInvitationsEverywhere } from '../../vault/memberships.ts'
import { changeOn, command, listing, verbs, type Noun } from '../common/noun.ts'
import { refuse } from '../common/command-errors.ts'
import { rowOf } from '../common/stdio.ts'
import { fail, nameOf, TEXT, TEXTS } from '../common/words.ts'

const CLIENT_ID = /^[a-z0-9][a-z0-9._-]{0,63}$/

export const noun: Noun = {
  isOfInstallation: true,
  help: `  client add --id ID --name NAME --redirect-uri URI [--redirect-uri URI ...]
                                          register an OAuth client
  client disable --id ID                  disable a client and revoke its grants
  client enable --id ID                   enable a client again
  client list                             list every client: id, state, name, redirect URIs
`,

  run: verbs('client', {
    add: command({ id: TEXT, name: TEXT, 'redirect-uri': TEXTS }, async (given, env) => {
      const { id, 'redirect-uri': uris = [] } = given
      if (id === undefined || !CLIENT_ID.test(id)) {
        fail('client add needs --id ID: 1 to 64 of a-z, 0-9, ".", "_" and "-", beginning with a letter or digit')
      }
      const name = nameOf('client add needs --name', given.name)
      if (uris.length === 0) fail('client add needs --redirect-uri URI')
      const wrong = uris.find((uri) => !isRegistrable(uri))
      if (wrong !== undefined) {
        fail(`${JSON.stringify(wrong)} cannot be a redirect URI; allowed: https://…, http:// with 127.0.0.1, [::1] or localhost, or an app scheme as in com.example.app:/callback; ` +
          'without wildcard, fragment or user')
      }
      return changeOn(env, (database) => addClient(database, { id, name, redirect_uris: [...new Set(uris)] }), 'Added.')
    }),
    disable: switching('disable'),
    enable: switching('enable'),
    list: listing(describeClients)
  })
}

function switching (verb: 'disable' | 'enable') {
  return command({ id: TEXT }, async ({ id }, env) => {
    if (!id) fail(`client ${verb} needs --id ID`)
    if (id === CONSOLE_CLIENT) fail('The console is part of the service. To turn it off, set CONSOLE=off')
    return changeOn(env, (database) => switchClient(database, id, verb === 'disable'))
  })
}

/** Registers an OAuth client. Throws a StartError when the id is taken. */
export async function addClient (
  { db }: Database, client: { id: string, name: string, redirect_uris: string[] }
): Promise<void> {
  if (!await createClient(db, client)) refuse(`The client ${client.id} already exists`)
}

/**
 * Disables or enables a client. Either change revokes all grants of the client, also those created during the change.
 * Records an audit event in each organization whose API tokens end. Throws a StartError for an unknown client.
 */
export async function switchClient ({ db: handle }: Database, id: string, disabled: boolean): Promise<void> {
  // Disable the client first, in its own transaction: revoking its grants may need several transactions.
  if (disabled) await transaction(handle, (db) => setDisabled(db, id, disabled))
  while (await transaction(handle, (db) => revokeSome(db, id)) > 0);
  if (disabled) return
  await transaction(handle, async (db) => {
    await setDisabled(db, id, disabled)
    while (await revokeSome(db, id) > 0);
  })
}

async function setDisabled (db: Db, id: string, disabled: boolean): Promise<void> {
  if (!await setClientDisabled(db, id, disabled)) refuse(`There is no client ${id}`)
}

async function revokeSome (db: Db, id: string): Promise<number> {
  const { revoked, ended } = await revokeGrantsOfClient(db, id)
  const organizations = ended.map(({ organization_id }) => organization_id)
  const effects = await endInvitationsEverywhere(db, organizations)
  await recordOfPerson(db, organizations.map(operatorOf), (organizationId) => ({
    action: 'oauth.revoke',
    resource_type: 'client',
    resource_id: id,
    details: { client: id, ...endingOf(ended, organizationId) }
  }), { effects })
  return revoked
}

async function * describeClients ({ db }: Database): AsyncGenerator<string> {
  for (const { id, name, redirect_uris, disabled_at } of await listClients(db)) {
    yield rowOf(id, disabled_at === null ? 'active' : 'disabled', name, redirect_uris.join(' '))
  }
}
