import { Value } from '@sinclair/typebox/value'
import { NEW_NAME_PROBLEM, NewName } from '../../../schemas/shapes.ts'
import { refuse } from '../api-error.ts'

/** Whether a new object can have this name (`NewName`). */
export const isNewName = (text: string | undefined): text is string =>
  text !== undefined && Value.Check(NewName, text)

/**
 * Refuses a changed name that is not a `NewName`, unless it is the stored name: a client may send back what it has
 * read. Call this in the transaction of the change. `findStored` is only called for such a name.
 */
export async function requireNewName (
  name: string | undefined, findStored: () => Promise<string | undefined>
): Promise<void> {
  if (name === undefined || isNewName(name) || await findStored() === name) return
  refuse('name', NEW_NAME_PROBLEM)
}
