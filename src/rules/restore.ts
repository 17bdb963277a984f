/** What a restore stores: the version as it is or re-encrypted by the server, or the content of the request. */
type RestorePlan = 'as_stored' | 're_encrypt' | 'as_sent' | 'content_required_for_old_key' | 'key_proof_mismatch'

interface RestoreCase {
  /** The custody of the project's key. */
  managed: 'server' | 'client'
  /** Whether the version is under the project's active key. */
  underActiveKey: boolean
  /** The custody of the version's key. */
  heldBy: 'server' | 'client'
  /** Whether the request has content. */
  content: boolean
  proof: 'absent' | 'right' | 'wrong'
}

/**
 * Decides a restore, after the retention check (S-5.8). The client must send the content of a version that is under an
 * old key of a client; while the project's key is with clients, content needs a right proof.
 */
export function planRestore ({ managed, underActiveKey, heldBy, content, proof }: RestoreCase): RestorePlan {
  if (managed === 'server') {
    if (underActiveKey) return 'as_stored'
    if (heldBy === 'server') return 're_encrypt'
    return content ? 'as_sent' : 'content_required_for_old_key'
  }
  if (!underActiveKey && !content) return 'content_required_for_old_key'
  if (proof === 'wrong' || (content && proof === 'absent')) return 'key_proof_mismatch'
  return content ? 'as_sent' : 'as_stored'
}
