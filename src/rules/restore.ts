/** What a restore stores (the version, the re-encrypted version, or the content of the request), or an error code. */
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
 * Decides a restore, after the retention check (S-5.8). In a server-managed project, the server re-encrypts versions
 * under its own former keys. Any other version under a former key needs content in the request. In a client-managed
 * project, a sent proof must be right, and sent content needs a proof.
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
