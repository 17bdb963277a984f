import { transaction, type Database, type Db } from '../../db/database.ts'
import { endingOf } from '../../db/callers/grants.ts'
import { operatorOf, recordOfPerson } from '../../repositories/audit/audit.ts'
import { createClient, listClients, revokeGrantsOfClient, setClientDisabled } from '../../repositories/people/oauth.ts'
import { StartError } from '../common/open.ts'

/** The format of the id of an OAuth client. */
export const CLIENT_ID = /^[a-z0-9][a-z0-9._-]{0,63}$/

/** Registers an OAuth client. Throws a StartError when the id is taken. */
export async function addClient (
  { db }: Database, client: { id: string, name: string, redirect_uris: string[] }
): Promise<void> {
  if (!await createClient(db, client)) throw new StartError(`The client ${client.id} already exists`)
}

/**
 * Disables or enables a client. Both revoke all of its grants, so that a grant created during the change never becomes
 * valid. Records an audit event in each organization that loses API tokens. Throws a StartError for an unknown client.
 */
export async function switchClient ({ db: handle }: Database, id: string, disabled: boolean): Promise<void> {
  // Disable the client first, in its own transaction: revoking its grants may need several transactions.
  if (disabled) await transaction(handle, (db) => mark(db, id, disabled))
  await untilNone(() => transaction(handle, (db) => revokeSome(db, id)))
  if (disabled) return
  await transaction(handle, async (db) => {
    await mark(db, id, disabled)
    await untilNone(() => revokeSome(db, id))
  })
}

async function untilNone (take: () => Promise<number>): Promise<void> {
  while (await take() > 0);
}

async function mark (db: Db, id: string, disabled: boolean): Promise<void> {
  if (!await setClientDisabled(db, id, disabled)) throw new StartError(`There is no client ${id}`)
}

async function revokeSome (db: Db, id: string): Promise<number> {
  const { revoked, ended } = await revokeGrantsOfClient(db, id)
  await recordOfPerson(db, ended.map(({ organization_id }) => operatorOf(organization_id)), (organizationId) => ({
    action: 'oauth.revoke',
    resource_type: 'client',
    resource_id: id,
    details: { client: id, ...endingOf(ended, organizationId) }
  }))
  return revoked
}

/** Every client as one line: id, state, name, and its redirect URIs. */
export async function describeClients ({ db }: Database): Promise<string[]> {
  return (await listClients(db)).map(({ id, name, redirect_uris, disabled_at }) =>
    [id, disabled_at === null ? 'active' : 'disabled', name, redirect_uris.join(' ')].join('\t'))
}
