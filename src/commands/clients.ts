import { type Database, transaction } from '../db/database.ts'
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
 * Shuts a client out, which revokes what it was granted, or lets it in again. Throws a StartError when there is none.
 */
export async function switchClient ({ db: handle }: Database, id: string, disabled: boolean): Promise<void> {
  await transaction(handle, async (db) => {
    if (!await setClientDisabled(db, id, disabled)) throw new StartError(`There is no client ${id}`)
  })
}

/** Every client as one line: id, state, name, and its redirect URIs. */
export async function describeClients ({ db }: Database): Promise<string[]> {
  return (await listClients(db)).map(({ id, name, redirect_uris, disabled_at }) =>
    [id, disabled_at === null ? 'active' : 'disabled', name, redirect_uris.join(' ')].join('\t'))
}
