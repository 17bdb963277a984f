import { type Database, transaction } from '../db/database.ts'
import { endingOf } from '../db/grants.ts'
import { operatorOf, recordOfPerson } from '../repositories/audit.ts'
import { createClient, listClients, setClientDisabled } from '../repositories/oauth.ts'
import { StartError } from './open.ts'

/** What the id of an OAuth client looks like. */
export const CLIENT_ID = /^[a-z0-9][a-z0-9._-]{0,63}$/

/** Registers an OAuth client. Throws a StartError when the id is taken. */
export async function addClient (
  { db }: Database, client: { id: string, name: string, redirect_uris: string[] }
): Promise<void> {
  if (!await createClient(db, client)) throw new StartError(`There is a client ${client.id} already`)
}

/**
 * Shuts a client out, which revokes what it was granted, or lets it in again; organizations whose API tokens end with
 * that are told. Throws a StartError when there is none.
 */
export async function switchClient ({ db: handle }: Database, id: string, disabled: boolean): Promise<void> {
  await transaction(handle, async (db) => {
    const ended = await setClientDisabled(db, id, disabled)
    if (ended === undefined) throw new StartError(`There is no client ${id}`)
    const concerned = [...new Set(ended.map(({ organization_id }) => organization_id))]
    await recordOfPerson(db, concerned.map(operatorOf), (organizationId) => ({
      action: 'oauth.revoke',
      resource_type: 'client',
      resource_id: id,
      details: { client: id, ...endingOf(ended, organizationId) }
    }))
  })
}

/** Every client as one line: id, state, name, and its redirect URIs. */
export async function describeClients ({ db }: Database): Promise<string[]> {
  return (await listClients(db)).map(({ id, name, redirect_uris, disabled_at }) =>
    [id, disabled_at === null ? 'active' : 'disabled', name, redirect_uris.join(' ')].join('\t'))
}
