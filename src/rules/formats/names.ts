import { Value } from '@sinclair/typebox/value'
import { NEW_NAME_PROBLEM, NewName, unprintable } from '../../../schemas/shapes.ts'
import { refuse } from '../api-error.ts'

/** Whether a new object can have this name (`NewName`). */
export const isNewName = (text: string | undefined): text is string =>
  text !== undefined && Value.Check(NewName, text)

/**
 * Escapes the characters of a text that `NewName` does not have, as `\u001b`: also valid in a string of JSON. Keeps
 * the characters in `except`.
 */
export const escapeUnprintable = (text: string, except = ''): string =>
  text.replace(unprintable(), (character) => except.includes(character)
    ? character
    : `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`)

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
