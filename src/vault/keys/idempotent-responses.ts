import { openAtRest, sealAtRest } from '../../crypto/at-rest.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import type { AnswerSeal } from '../../repositories/operations/idempotency.ts'
import { answerContext } from './contexts.ts'
import { storageKeyOf } from './keys.ts'

/** Seals stored responses under the storage key of their organization. */
export function createAnswerSeal (keyring: Keyring): AnswerSeal {
  return {
    seal: (organization, answer, text) =>
      sealAtRest(storageKeyOf(keyring, organization), Buffer.from(text, 'utf8'), answerContext(answer)),
    open: (organization, answer) =>
      openAtRest(storageKeyOf(keyring, organization), answer.sealed, answerContext(answer)).toString('utf8')
  }
}
