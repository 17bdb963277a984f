import type { KeyObject } from 'node:crypto'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { openBlob } from '../../crypto/blob.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { activeKeyOf, ownSecret, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import { warningsOfChange, type Warnings } from '../../rules/documents/check.ts'
import { withoutMark } from '../../rules/documents/positions.ts'
import { documentError, encodingError } from '../../rules/documents/read.ts'
import { changeNames, type ChangedDocument, type NameChanges } from '../../rules/editing/change.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { sealText } from './accept.ts'
import { openCurrent } from './documents.ts'
import { requireNames } from './read.ts'
import { dataKeyOf } from '../keys/keys.ts'

/** The changes of a request. `memberOf` returns the property of the request body that contains the name. */
export interface RequestedChanges extends NameChanges { memberOf: (name: string) => string }

/**
 * The names that were changed, and the new document; `blob` is undefined if nothing was changed. `warnings`: about the
 * names that the request sets.
 */
export interface Edited extends Omit<ChangedDocument, 'text'> { blob: string | undefined, warnings: Warnings }

/** Changes single names in the document of a level that was loaded as `readable`. Throws ApiError. */
export function editDocument (
  keyring: Keyring, storageKey: KeyObject, state: LevelState, changes: RequestedChanges
): Edited {
  const { level } = state
  const format = requireNames(state)
  const dataKey = dataKeyOf(keyring, activeKeyOf(state))
  const before = textOf(storageKey, state, dataKey)
  // `changeNames` treats an empty text as a missing document, so an empty document that does not parse is refused here.
  if (withoutMark(before) === '' && ownSecret(state)?.is_stored) {
    const position = documentError(format, before)
    if (position !== undefined) return fail('document_unreadable', { level, ...position })
  }
  const result = changeNames(format, before, changes)
  if (!('refused' in result)) {
    const { text, added, changed, removed } = result
    const isUnchanged = added.length + changed.length + removed.length === 0
    const warnings = warningsOfChange(format, result, new Set(changes.set.keys()))
    return { blob: isUnchanged ? undefined : sealText(dataKey, text, 'body'), added, changed, removed, warnings }
  }
  if (result.refused === 'unreadable') {
    const { refused, ...error } = result
    return fail('document_unreadable', { level, ...error })
  }
  switch (result.refused) {
    case 'limit': return refuse('body', `The document would have more than ${result.limit}`)
    case 'together':
      return refuse('body', `The document, as ${format}, cannot hold these changes together: change the names one at a time`)
    case 'untried':
      return refuse('body', 'The document is too large to try all ways to write these changes: store the whole document')
    case 'anchored':
      return refuse(changes.memberOf(result.name), 'An alias in the document refers to the value of this name')
    case 'not_text':
      return refuse(changes.memberOf(result.name), 'A value of an `.env` document is a text')
    case 'structured':
      return refuse(changes.memberOf(result.name),
        'The present value is an object or a list: send JSON, or list the name in `replace` to replace it by a text')
    case 'unholdable':
      return refuse(changes.memberOf(result.name), changes.set.has(result.name)
        ? `The document, as ${format}, cannot hold this name with this value`
        : 'This name cannot be removed without a change of other lines: store the whole document instead')
  }
}

function textOf (storageKey: KeyObject, state: LevelState, dataKey: KeyObject): string {
  const secret = ownSecret(state)
  if (secret === undefined || !secret.is_stored) return ''
  const blob = openCurrent(storageKey, state, secret as SecretRow & { sealed: Buffer })
  const plain = openBlob(dataKey, blob)
  // The content was validated when it was stored. So if it does not decrypt, the blob was manipulated.
  if (plain === undefined) throw new IntegrityError()
  const text = plain.toString('utf8')
  // A client can store a document that is not UTF-8. If the server stored `text`, it would change these bytes.
  const position = encodingError(plain, text)
  return position === undefined ? text : fail('document_unreadable', { level: state.level, ...position })
}
