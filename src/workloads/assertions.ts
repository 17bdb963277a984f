import type { errors, JSONWebKeySet, JWK, JWTPayload, JWTVerifyGetKey, JWTVerifyOptions } from 'jose'
import { ASSERTION_LENGTH, type FailedCheck } from '../../schemas/workloads.ts'
import { random, sha256 } from '../crypto/primitives.ts'
import {
  claimsFor, claimsMatch, CLOCK_SKEW, isText, MAX_ASSERTION_AGE, runOf, type AssertionClaims, type AssertionResult,
  type AssertionRule, type RefusedAssertion
} from '../rules/workloads.ts'
import { IssuerError, type Issuers } from './issuers.ts'

const ALGORITHMS = [
  'RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519'
]
/** The maximum number of keys with the same `kid`, or without one, that are tried. */
const MAX_KEYS = 10
/**
 * Seconds for which a spent assertion is kept after every rule refuses it: longer than a request, which may wait for
 * the issuer before it uses the assertion.
 */
const SPENT_MARGIN = 600

const CHECKS: Readonly<Record<string, FailedCheck>> = {
  iss: 'issuer', sub: 'subject', aud: 'audience', exp: 'expiry', iat: 'issued_at', nbf: 'not_before'
}

/**
 * Verifies an assertion by its rule, but not whether the rule is enabled or the assertion is spent. May wait for the
 * issuer: call this outside of a transaction. Rejects only for errors of this service.
 */
export async function verifyAssertion (
  issuers: Issuers, rule: AssertionRule, assertion: string, now: Date
): Promise<AssertionResult> {
  // Imports jose with the first assertion, to keep the start fast.
  const jose = await import('jose')
  const check = headerCheck(jose, rule, assertion)
  if (check === 'issuer') await verifyInVain(assertion)
  if (check !== undefined) return refused(check)
  const keys = rule.jwks === null
    ? issuers.keysOf(rule.organization_id, rule.issuer)
    : jose.createLocalJWKSet(rule.jwks as JSONWebKeySet)
  try {
    const payload = await verifiedPayload(jose, assertion, keys, {
      algorithms: ALGORITHMS,
      issuer: rule.issuer,
      audience: rule.audience,
      requiredClaims: ['exp', 'sub'],
      maxTokenAge: rule.max_assertion_age,
      clockTolerance: CLOCK_SKEW,
      currentDate: now
    })
    return accept(rule, assertion, payload, now)
  } catch (error) {
    return refusalOf(jose, error as Error, rule)
  }
}

type Jose = typeof import('jose')

/**
 * Takes the time of a verification with cached keys. Called where no key is asked, so that strangers do not see by the
 * duration whether a rule exists and which issuer it has.
 */
export async function verifyInVain (assertion: string): Promise<void> {
  const jose = await import('jose')
  if (headerCheck(jose, undefined, assertion) !== undefined) return
  const { alg = '', kid } = jose.decodeProtectedHeader(assertion)
  decoys[alg] ??= makeDecoy(jose, alg)
  const key = { ...await decoys[alg], ...(typeof kid === 'string' && { kid }) }
  await jose.jwtVerify(assertion, jose.createLocalJWKSet({ keys: [key] })).catch(() => {})
}

const decoys: Record<string, Promise<JWK>> = {}

// No private key of the modulus is needed, and making one takes long.
async function makeDecoy ({ exportJWK, generateKeyPair }: Jose, alg: string): Promise<JWK> {
  if (!/^[RP]S/.test(alg)) return exportJWK((await generateKeyPair(alg, { extractable: true })).publicKey)
  const modulus = random(256)
  modulus[0]! |= 0x80
  modulus[255]! |= 1
  return { kty: 'RSA', n: modulus.toString('base64url'), e: 'AQAB' }
}

const refused = (check: FailedCheck, verified: AssertionClaims | null = null): RefusedAssertion =>
  ({ accepted: false, check, verified })

// The checks that need no key. The issuer is checked here too, so that a token of another issuer loads no keys.
function headerCheck (
  { decodeJwt, decodeProtectedHeader }: Jose, rule: AssertionRule | undefined, assertion: string
): FailedCheck | undefined {
  if (assertion.length > ASSERTION_LENGTH || !/^[\w-]+\.[\w-]+\.[\w-]*$/.test(assertion)) return 'format'
  try {
    const header = decodeProtectedHeader(assertion)
    if (header.typ !== undefined && header.typ !== 'JWT') return 'type'
    if (Object.hasOwn(header, 'crit')) return 'critical'
    if (!ALGORITHMS.includes(header.alg as string)) return 'algorithm'
    const { iss } = decodeJwt(assertion)
    return rule === undefined || iss === rule.issuer ? undefined : 'issuer'
  } catch {
    return 'format'
  }
}

async function verifiedPayload (
  { errors, jwtVerify }: Jose, assertion: string, keys: JWTVerifyGetKey, options: JWTVerifyOptions
): Promise<JWTPayload> {
  try {
    return (await jwtVerify(assertion, keys, options)).payload
  } catch (error) {
    if (!(error instanceof errors.JWKSMultipleMatchingKeys)) throw error
    let tried = 0
    for await (const key of error) {
      if (++tried > MAX_KEYS) break
      try {
        return (await jwtVerify(assertion, key, options)).payload
      } catch (error) {
        if (isOfClaims(errors, error as Error)) throw error
      }
    }
    throw new errors.JWSSignatureVerificationFailed()
  }
}

type ClaimsError = errors.JWTClaimValidationFailed | errors.JWTExpired

const isOfClaims = (errors: Jose['errors'], error: Error): error is ClaimsError =>
  error instanceof errors.JWTClaimValidationFailed || error instanceof errors.JWTExpired

function refusalOf ({ errors }: Jose, error: Error, { preset }: AssertionRule): RefusedAssertion {
  if (error instanceof IssuerError) return refused(error.check)
  if (isOfClaims(errors, error)) {
    const isTooOld = error instanceof errors.JWTExpired && error.claim === 'iat'
    return refused(isTooOld ? 'age' : CHECKS[error.claim] ?? 'claims', claimsFor(preset, error.payload))
  }
  if (error instanceof errors.JWSSignatureVerificationFailed) return refused('signature')
  // The other errors are of a key that does not fit: it is missing, private, malformed or too short.
  return refused(error instanceof errors.JWTInvalid || error instanceof errors.JWSInvalid ? 'format' : 'key')
}

function accept (rule: AssertionRule, assertion: string, payload: JWTPayload, now: Date): AssertionResult {
  const { sub, exp = 0, iat = 0, jti } = payload
  const claims = claimsFor(rule.preset, payload)
  if (!isText(sub)) return refused('subject', claims)
  // The skew is for clocks. What can be exchanged again must not be exchanged after its end.
  if (!rule.single_use && exp * 1000 <= now.getTime()) return refused('expiry', claims)
  if (!claimsMatch(rule.claims, claims)) return refused('claims', claims)
  const end = Math.min(exp, iat + MAX_ASSERTION_AGE)
  return {
    accepted: true,
    claims,
    subject: sub,
    run: runOf(rule.preset, claims),
    issuedAt: new Date(iat * 1000),
    expires: new Date(end * 1000),
    spend: spendOf(assertion, jti),
    spentUntil: new Date((end + CLOCK_SKEW + SPENT_MARGIN) * 1000)
  }
}

// Without a `jti`, header and payload identify the assertion. The signature does not: anyone can make the second valid
// signature of an ECDSA signature, and base64url of the same bytes has several spellings.
const spendOf = (assertion: string, jti: unknown): string => typeof jti === 'string' && jti !== ''
  ? sha256(`jti:${jti}`).toString('hex')
  : sha256(assertion.slice(0, assertion.lastIndexOf('.'))).toString('hex')
