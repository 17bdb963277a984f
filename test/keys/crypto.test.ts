// runs: no database
/** Known answers, manipulations, wrong keys and wrong positions for all functions in `src/crypto/`. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { IntegrityError, openAtRest, sealAtRest } from '../../src/crypto/at-rest.ts'
import { hashToken, mintApiToken, parseApiToken, storedToken, TOKEN_PATTERN } from '../../src/crypto/bearer.ts'
import { isBlobText, MAX_BLOB_BYTES, openBlob, sealBlob } from '../../src/crypto/blob.ts'
import {
  decodeProof, deriveDataKey, generateKeyString, generateSalt, makeProof, proofMatches, proofOpens
} from '../../src/crypto/key-proof.ts'
import {
  createKeyring, generateMasterKey, makeCanary, MasterKeyMissing, openCanary, parseMasterKey
} from '../../src/crypto/keyring.ts'
import { COSTS } from '../../src/crypto/costs.ts'
import { generatePassword, hashPassword, verifyPassword } from '../../src/crypto/passwords.ts'
import { WorkOverloaded } from '../../src/gate.ts'
import {
  decodeBase64, deriveKey, encodeContext, expandKey, hmac, hmacMatches, makeEtag, open, random, sameBytes, seal,
  secretKey, sha256
} from '../../src/crypto/primitives.ts'
import {
  createRowChecker, createRowEncoder, encodeField, encodeRow, rowKeyFingerprint, rowMac
} from '../../src/crypto/row-mac.ts'

const client = vectors('client')
const server = vectors('server')
const ulid = '01ARZ3NDEKTSV4RRFFQ69G5FAV'

t.test('primitives', async (t) => {
  const key = secretKey(random(32))
  const place = encodeContext('secret', ulid, 1)

  t.test('opens a published AES-256-GCM vector', async (t) => {
    const v = vectors('gcm')
    const sealed = Buffer.from(v.iv + v.ciphertext + v.tag, 'hex')
    t.equal(open(secretKey(hex(v.key)), sealed, hex(v.place))?.toString('hex'), v.plaintext)
  })

  t.test('opens what it sealed, also when that is empty', async (t) => {
    for (const size of [0, 1, 15, 16, 17, 65536]) {
      const plaintext = random(size)
      const sealed = seal(key, plaintext, place)
      t.equal(sealed.length, size + 28)
      t.same(open(key, sealed, place), plaintext)
    }
  })

  t.test('refuses every changed byte, another key and another place (CR-01, CR-08)', async (t) => {
    const sealed = seal(key, random(40), place)
    for (const changed of manipulations(sealed)) t.equal(open(key, changed, place), undefined)
    t.equal(open(secretKey(random(32)), sealed, place), undefined)
    t.equal(open(key, sealed, encodeContext('secret', ulid, 2)), undefined)
    t.equal(open(key, sealed), undefined)
  })

  t.test('refuses a tag of 0 to 15 bytes and whatever is shorter than 28 (CR-03)', async (t) => {
    const sealed = seal(key, random(40), place)
    for (let tag = 0; tag < 16; tag++) t.equal(open(key, sealed.subarray(0, 52 + tag), place), undefined)
    for (let size = 0; size < 28; size++) t.equal(open(key, sealed.subarray(0, size), place), undefined)
    const empty = seal(key, Buffer.alloc(0))
    for (let tag = 0; tag < 16; tag++) t.equal(open(key, empty.subarray(0, 12 + tag)), undefined)
  })

  t.test('never uses an IV twice in 100,000 encryptions (CR-04)', async (t) => {
    const ivs = new Set<string>()
    for (let i = 0; i < 100_000; i++) ivs.add(seal(key, Buffer.alloc(0)).toString('latin1', 0, 12))
    t.equal(ivs.size, 100_000)
  })

  t.test('encodes places injectively (CR-02)', async (t) => {
    const pieces = ['', 'a', 'b', 'ab', '|', ',', '\0', '\0\0\0\u0001a', 'é', '1', '11']
    const seen = new Map<string, string>()
    let places = 0
    for (const fields of lists(pieces, 3)) {
      seen.set(encodeContext(...fields).toString('latin1'), fields.join())
      places++
    }
    t.equal(seen.size, places)
    const random = new Map<string, string>()
    for (let i = 0; i < 20_000; i++) {
      const field = () => Array.from({ length: pick(4) }, () => pieces[pick(8)]).join('')
      const fields = Array.from({ length: pick(4) }, field)
      const encoded = encodeContext(...fields).toString('latin1')
      const name = JSON.stringify(fields)
      if ((random.get(encoded) ?? name) !== name) t.fail(`${name} collides with ${random.get(encoded)}`)
      random.set(encoded, name)
    }
    t.equal(encodeContext(...server.place.fields).toString('base64'), server.place.encoded)
    t.same(encodeContext(7), encodeContext('7'), 'a number is its decimal text')
    for (const bad of [NaN, 1.5, Infinity, 2 ** 53]) t.throws(() => encodeContext(bad))
    t.throws(() => encodeContext('\ud800'), 'half a surrogate pair would collide with U+FFFD')
  })

  t.test('compares secrets of any lengths (CR-17)', async (t) => {
    t.equal(sameBytes(Buffer.from('abc'), Buffer.from('abc')), true)
    t.equal(sameBytes(Buffer.from('abc'), Buffer.from('abd')), false)
    t.equal(sameBytes(Buffer.from('abc'), Buffer.from('ab')), false)
    t.equal(sameBytes(Buffer.alloc(0), Buffer.alloc(1)), false)
    t.equal(sameBytes(Buffer.alloc(0), Buffer.alloc(0)), true)
  })

  t.test('keeps keys of exactly 32 bytes as key objects that do not print (CR-15)', async (t) => {
    for (const size of [0, 16, 31, 33, 64]) t.throws(() => secretKey(random(size)))
    const bytes = random(32)
    const key = secretKey(bytes)
    bytes.fill(0)
    t.notSame(key.export(), bytes, 'it is a copy')
    t.equal(JSON.stringify(key), '{}')
    const v = server.derived
    t.equal(deriveKey(secretKey(base64(v.key)), base64(v.salt), v.info).export().toString('base64'), v.derived)
    const { key: from, purpose, salt, expanded } = server.expanded
    t.equal(expandKey(secretKey(base64(from)), purpose, base64(salt)).export().toString('base64'), expanded)
    t.equal(sha256('abc').toString('hex'), 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
    t.equal(hmac(key, 'x').length, 32)
    t.ok(hmacMatches(key, 'x', hmac(key, 'x')))
    for (const other of [
      hmac(key, 'y'), hmac(key, 'x').subarray(1), Buffer.alloc(0), Buffer.concat([hmac(key, 'x'), Buffer.of(0)])
    ]) {
      t.notOk(hmacMatches(key, 'x', other))
    }
  })

  t.test('decodes canonical base64 only', async (t) => {
    t.same(decodeBase64('AAE='), Buffer.of(0, 1))
    for (const bad of ['AAE', 'AAF=', 'AAE=\n', ' AAE=', 'AA*E=', '_-8=', 'AAE==']) {
      t.equal(decodeBase64(bad), undefined, bad)
    }
  })
})

t.test('blobs', async (t) => {
  t.test('opens the known blobs and refuses every changed byte, another key and another spelling', async (t) => {
    for (const v of client.blobs) {
      const key = secretKey(base64(v.data_key))
      t.equal(openBlob(key, v.blob)?.toString(), v.plaintext)
      t.equal(base64(v.blob).toString('hex', 0, 12), v.iv)
      for (const changed of manipulations(base64(v.blob))) t.equal(openBlob(key, changed.toString('base64')), undefined)
      t.equal(openBlob(secretKey(random(32)), v.blob), undefined)
      for (const text of ['', v.blob.replace('=', ''), v.blob + '\n', `*${v.blob}`]) {
        t.equal(openBlob(key, text), undefined)
      }
    }
  })

  t.test('seals bytes and text as standard padded base64, differently every time', async (t) => {
    const key = secretKey(random(32))
    const blob = sealBlob(key, 'naïve')
    t.equal(openBlob(key, blob)?.toString(), 'naïve')
    t.ok(isBlobText(blob))
    t.equal(blob.length % 4, 0)
    t.not(sealBlob(key, 'naïve'), blob)
  })

  t.test('keeps blobs opaque: charset and size, no canonical form (CR-07)', async (t) => {
    const sized = (bytes: number) => Buffer.alloc(bytes).toString('base64')
    for (const good of [sized(28), sized(29), sized(30), sized(MAX_BLOB_BYTES), 'A'.repeat(47), 'z'.repeat(42)]) {
      t.ok(isBlobText(good), `${good.length} characters`)
    }
    t.ok(isBlobText(sized(MAX_BLOB_BYTES).replace(/=+$/, '')))
    const misshapen = [sized(40) + '\n', sized(40) + '===', '-'.repeat(40), 'A'.repeat(20) + '=' + 'A'.repeat(20)]
    for (const bad of ['', '=', sized(27), sized(MAX_BLOB_BYTES + 1), ...misshapen]) {
      t.notOk(isBlobText(bad), `${bad.length} characters`)
    }
  })
})

t.test('at rest', async (t) => {
  const key = secretKey(random(32))
  const place = encodeContext('secret', ulid, 1)

  t.test('opens what was stored before', async (t) => {
    const v = server.at_rest
    const opened = openAtRest(secretKey(base64(v.storage_key)), base64(v.sealed), encodeContext(...server.place.fields))
    t.equal(opened.toString(), v.plaintext)
    t.equal(base64(v.sealed)[0], 2)
  })

  t.test('refuses every manipulation of a 200-byte value, another key and another place (CR-01)', async (t) => {
    const plaintext = random(200)
    const sealed = sealAtRest(key, plaintext, place)
    t.equal(sealed.length, 1 + 24 + 12 + 200 + 16)
    t.same(openAtRest(key, sealed, place), plaintext)
    const again = sealAtRest(key, plaintext, place)
    t.notSame(again.subarray(1, 25), sealed.subarray(1, 25), 'every record has its own salt')
    for (const changed of manipulations(sealed)) t.throws(() => openAtRest(key, changed, place), IntegrityError)
    for (let size = 0; size < 60; size++) {
      t.throws(() => openAtRest(key, sealed.subarray(0, size), place), IntegrityError)
    }
    t.throws(() => openAtRest(secretKey(random(32)), sealed, place), IntegrityError)
    t.throws(() => openAtRest(key, sealed, encodeContext('secret', ulid, 2)), IntegrityError)
    t.throws(() => openAtRest(key, sealed, Buffer.alloc(0)), IntegrityError)
  })
})

t.test('keyring', async (t) => {
  const place = encodeContext('project', ulid, 1, 'key_string')
  const old = parseMasterKey(generateMasterKey().text)
  const current = parseMasterKey(generateMasterKey().text)
  const both = createKeyring([current, old])

  t.test('wraps with the newest key and unwraps with every key (CR-13)', async (t) => {
    const before = createKeyring([old]).wrap(Buffer.from('value'), place)
    t.equal(both.unwrap(before, place).toString(), 'value')
    t.equal(both.idOf(before), old.id)
    t.equal(both.idOf(both.wrap(Buffer.from('value'), place)), current.id)
    t.equal(both.currentId, current.id)
    t.same(both.ids, [current.id, old.id])
    const v = server.wrapped
    const ring = createKeyring([parseMasterKey(v.master_key)])
    t.equal(ring.unwrap(base64(v.wrapped), encodeContext(...server.place.fields)).toString(), v.plaintext)
  })

  t.test('refuses manipulation, another place and another label, and names a key that is missing', async (t) => {
    const wrapped = both.wrap(Buffer.from('value'), place)
    for (const changed of manipulations(wrapped)) {
      try {
        both.unwrap(changed, place)
        t.fail('a manipulated value was unwrapped')
      } catch (error) {
        t.ok(error instanceof IntegrityError || error instanceof MasterKeyMissing)
      }
    }
    t.throws(() => both.unwrap(wrapped, encodeContext('project', ulid, 2, 'key_string')), IntegrityError)
    const relabelled = createKeyring([{ id: old.id, key: current.key }]).wrap(Buffer.from('value'), place)
    relabelled.write(current.id, 1, 'latin1')
    t.throws(() => both.unwrap(relabelled, place), IntegrityError, 'the id is authenticated')
    t.throws(() => createKeyring([old]).unwrap(wrapped, place), MasterKeyMissing)
    t.match(caught(() => createKeyring([old]).unwrap(wrapped, place)), { id: current.id })
    for (const bad of [Buffer.alloc(0), Buffer.of(5), Buffer.of(0, 1), Buffer.from('\u0003a b')]) {
      t.throws(() => both.idOf(bad), IntegrityError)
      t.throws(() => both.unwrap(bad, place), IntegrityError)
    }
  })

  t.test('remembers unwrapped keys, each for its own bytes and place only (CR-16)', async (t) => {
    const bytes = random(32)
    const wrapped = both.wrap(bytes, place)
    const key = both.unwrapKey(wrapped, place)
    t.same(key.export(), bytes)
    t.equal(both.unwrapKey(wrapped, place), key)
    t.throws(() => both.unwrapKey(wrapped, encodeContext('elsewhere')), IntegrityError)
    const another = both.unwrapKey(both.wrap(random(32), place), place)
    t.notSame(another.export(), bytes, 'another key in the same place')
    t.same(both.unwrapKey(wrapped, place).export(), bytes)
    for (const changed of manipulations(wrapped)) t.throws(() => both.unwrapKey(changed, place))
    t.throws(() => both.unwrapKey(both.wrap(random(31), place), place), IntegrityError)
  })

  t.test('reads master keys and repeats nothing of a wrong one', async (t) => {
    const { id, text } = generateMasterKey()
    t.match(id, /^mk-[0-9a-f]{8}$/)
    t.equal(parseMasterKey(text + '\n').id, id)
    const key = random(32).toString('base64')
    const wrong = [
      key, `:${key}`, `a b:${key}`, `${'x'.repeat(33)}:${key}`, `a:${key.slice(1)}`, `a:${key}=`, 'a:', `${key}:a`,
      `a:${random(16).toString('base64')}`, `a:${random(33).toString('base64')}`, `a:${random(32).toString('hex')}`
    ]
    for (const text of wrong) {
      const { message } = caught(() => parseMasterKey(text))
      t.notMatch(message, '\n')
      for (const part of text.split(':')) if (part.length > 8) t.notOk(message.includes(part))
    }
    t.throws(() => createKeyring([]))
    t.throws(() => createKeyring([old, { id: old.id, key: current.key }]))
  })

  t.test('shows with a canary whether the ring fits (CR-13)', async (t) => {
    const fingerprint = rowKeyFingerprint(secretKey(random(32)))
    const canary = makeCanary(createKeyring([old]), fingerprint)
    t.same(openCanary(both, canary), fingerprint, 'it names the key of the rows')
    t.same(
      openCanary(both, makeCanary(both, fingerprint, old.id)), fingerprint, 'one can be made for each key of the ring'
    )
    t.throws(() =>
      openCanary(both, both.wrap(Buffer.from('strongroom canaries'), encodeContext('canary'))), IntegrityError)
    t.throws(() => openCanary(createKeyring([current]), canary), MasterKeyMissing)
    t.throws(() => openCanary(createKeyring([{ id: old.id, key: current.key }]), canary), IntegrityError)
  })
})

t.test('MACs over rows', async (t) => {
  const v = server.row
  const key = secretKey(base64(v.key))
  const fields = v.fields.map(([name, kind, value]: [string, string, any]) =>
    [name, kind === 'bytes' ? base64(value) : kind === 'moment' ? new Date(value) : value]) as [string, unknown][]

  t.test('has the known answer', async (t) => {
    t.equal(encodeRow(v.table, fields), v.encoded)
    t.same(rowMac(key, v.table, fields), base64(v.mac))
    t.same(rowKeyFingerprint(key), base64(v.fingerprint))
  })

  t.test('has the same form where the fields are known beforehand', async (t) => {
    const names = fields.map(([name]) => name)
    t.equal(createRowEncoder(v.table, { fields: names })(Object.fromEntries(fields)), v.encoded)
    const [last, value] = fields.at(-1)!
    const before = createRowEncoder(v.table, { fields: names.slice(0, -1) })
    t.equal(before(Object.fromEntries(fields)) + encodeField(last, value), v.encoded)
    t.throws(() => createRowEncoder('t', { fields: ['a'] })({ a: '\ud800' }))
    t.throws(() => encodeField('a', '\ud800'))
  })

  t.test('leaves a field of a later release out while it is null', async (t) => {
    const before = createRowEncoder('t', { fields: ['a', 'b'] })
    const encode = createRowEncoder('t', { fields: ['a', 'b', 'c', 'd'], later: ['c', 'd'] })
    const row = { a: 1, b: null }
    t.equal(encode({ ...row, c: null, d: null }), before(row))
    const texts = [before(row), ...[{ c: '', d: null }, { c: null, d: '' }, { c: '', d: '' }, { c: false, d: null }]
      .map((later) => encode({ ...row, ...later }))]
    t.equal(new Set(texts).size, texts.length)
    t.throws(() => createRowEncoder('t', { fields: ['a', 'b'], later: ['a'] }), /last/)
    t.throws(() => encode(row), 'a row that was read without the field has no MAC')
  })

  t.test('verifies the row that it was made over, and no other', async (t) => {
    const mac = base64(v.mac)
    const checkerOf = (key: Parameters<typeof createRowChecker>[0]) => {
      const checker = createRowChecker(key)
      return (table: string, fields: [string, unknown][], mac: Buffer) =>
        checker.matches(encodeRow(table, fields), mac)
    }
    const matches = checkerOf(key)
    for (const time of ['first', 'second']) t.equal(matches(v.table, fields, mac), true, `the ${time} time`)
    t.equal(checkerOf(secretKey(random(32)))(v.table, fields, mac), false, 'another key')
    t.equal(matches('members', fields, mac), false, 'another table')
    t.equal(matches(v.table, fields.slice(1), mac), false, 'a field less')
    t.equal(matches(v.table, [...fields].reverse(), mac), false, 'another order')
    for (const length of [0, 16, 31, 33]) {
      t.equal(matches(v.table, fields, Buffer.concat([mac, mac]).subarray(0, length)), false, `${length} bytes`)
    }
    for (const [i, [name]] of fields.entries()) {
      for (const value of [null, '', 0, 'x', false, new Date(0), Buffer.alloc(0), [], {}]) {
        const changed = fields.with(i, [name, value])
        const isSame = JSON.stringify(changed) === JSON.stringify(fields)
        t.equal(matches(v.table, changed, mac), isSame, `${name} as ${JSON.stringify(value)}`)
      }
      t.equal(matches(v.table, fields.with(i, ['other', fields[i]![1]]), mac), false, `${name} by another name`)
    }
  })

  t.test('two rows that differ never have the same encoding (CR-02)', async (t) => {
    const values = [
      null, '', 'n', '0', '1:', ' ', 0, 1, -1, 10, true, false, new Date(0), new Date(1), new Date(NaN), Buffer.alloc(0), Buffer.from('0'), Buffer.from([0]),
      [], [null], [''], ['', ''], ['a', 'b'], ['ab'], ['a,b'], [['a'], 'b'], [['a', 'b']], {}, {
        a: null
      }, { a: 'b' }, { b: 'a' }, { a: 'b', c: 'd' }, { a: { b: 'c' } }, [{ a: 'b' }], 'ä', 'a\u0308'
    ]
    const rows = values.flatMap((one) =>
      [[['a', one]], ...values.map((two) => [['a', one], ['b', two]])]) as [string, unknown][][]
    const encoded = rows.flatMap((row) => [encodeRow('t', row), encodeRow('t1:a', row)])
    t.equal(new Set(encoded).size, encoded.length)
    t.equal(
      encodeRow('t', [['a', { b: 1, c: 2 }]]), encodeRow('t', [['a', { c: 2, b: 1 }]]),
      'the order of members does not matter'
    )
  })

  t.test('refuses what has no encoding of its own', async (t) => {
    for (const value of [undefined, Symbol('x'), 1n, () => 1, '\ud800', ['\udc00x']]) {
      t.throws(() => encodeRow('t', [['a', value]]), String(value))
    }
  })
})

t.test('key strings and proofs', async (t) => {
  t.test('derives the known data keys and proofs', async (t) => {
    for (const v of client.keys) {
      t.equal(await makeProof(v.key_string, base64(v.salt), v.iterations), v.proof)
      if (!v.data_key) continue
      const key = await deriveDataKey(v.key_string, base64(v.salt), v.iterations)
      t.equal(key.export().toString('base64'), v.data_key)
    }
  })

  t.test('a proof opens the blob for a key string of 32 bytes, not for 31 or 33 (CR-20, CR-24)', async (t) => {
    const salt = generateSalt()
    const revealing = ['k'.repeat(32), 'é'.repeat(16)]
    const safe = ['k'.repeat(31), 'k'.repeat(33), generateKeyString()]
    for (const keyString of [...revealing, ...safe]) {
      const opens = revealing.includes(keyString)
      const blob = sealBlob(await deriveDataKey(keyString, salt, 1000), 'A=1')
      const proof = decodeProof(await makeProof(keyString, salt, 1000))!
      t.equal(proofOpens(proof, blob), opens, `${Buffer.byteLength(keyString)} bytes`)
      t.equal(proofOpens(proof, blob.replace(/=+$/, '')), opens, 'padding does not hide it')
      t.equal(proofOpens(proof, ` ${blob}`), opens, 'spaces do not hide it')
    }
    t.equal(proofOpens(random(31), sealBlob(secretKey(random(32)), '')), false)
    t.equal(proofOpens(random(32), ''), false)
    const proof = random(32)
    let found = 0
    for (let i = 0; i < 20_000; i++) if (proofOpens(proof, random(40).toString('base64'))) found++
    t.equal(found, 0, 'no false alarm')
  })

  t.test('cuts a proof at 32 bytes and fills it with ASCII zeros', async (t) => {
    const salt = generateSalt()
    const proof = (keyString: string) => makeProof(keyString, salt, 1000)
    t.equal(await proof('k'.repeat(32) + 'a'), await proof('k'.repeat(32) + 'b'))
    t.equal(await proof('abc'), await proof('abc' + '0'.repeat(29)))
    t.not(await proof('abc'), await proof('abd'))
    t.equal(await proof('k'.repeat(31) + 'é'), await proof('k'.repeat(31) + 'è'), 'bytes are cut, not characters')
  })

  t.test('reads proofs of exactly 32 bytes and compares them (CR-17, CR-25)', async (t) => {
    const proof = random(32)
    t.same(decodeProof(proof.toString('base64')), proof)
    const otherLengths = [random(31), random(33)].map((bytes) => bytes.toString('base64'))
    for (const bad of ['', proof.toString('hex'), proof.toString('base64').slice(0, -1), ...otherLengths]) {
      t.equal(decodeProof(bad), undefined)
    }
    t.ok(proofMatches(proof, Buffer.from(proof)))
    for (const changed of manipulations(proof)) t.notOk(proofMatches(changed, proof))
  })

  t.test('makes key strings of 256 bits whose length is not 32', async (t) => {
    t.match(generateKeyString(), /^[0-9a-f]{64}$/)
    t.not(generateKeyString(), generateKeyString())
    t.equal(generateSalt().length, 16)
    t.equal(COSTS.keyIterations, 600_000)
  })

  t.test('refuses the 67th derivation at once and does the other 66 (CR-16)', async (t) => {
    const salt = generateSalt()
    const work = Array.from({ length: 67 }, () => deriveDataKey('k', salt, 1000))
    const results = await Promise.allSettled(work)
    t.equal(results.filter(({ status }) => status === 'fulfilled').length, 66)
    const last = results.at(-1)
    t.match(last, { status: 'rejected', reason: new WorkOverloaded('too many key derivations are waiting') })
    t.ok(await deriveDataKey('k', salt, 1000), 'the gate is open again')
  })
})

t.test('API tokens', async (t) => {
  t.test('have the published form and name their organization (CR-30)', async (t) => {
    const token = mintApiToken(ulid.toLowerCase())
    t.match(token, TOKEN_PATTERN)
    t.equal(TOKEN_PATTERN.source, '^dotenv_[0-9A-HJKMNP-TV-Z]{26}_[0-9A-Za-z]{46}$')
    t.same(parseApiToken(token), { organizationId: ulid })
    t.same(parseApiToken(server.token.token), { organizationId: server.token.organization_id })
    t.equal(hashToken(server.token.token).toString('base64'), server.token.hash)
    t.match(storedToken(token), { token_prefix: 'dotenv_01ARZ', token_suffix: token.slice(-4) })
    t.throws(() => mintApiToken('no-ulid'))
    t.not(mintApiToken(ulid), mintApiToken(ulid))
  })

  t.test('lose their checksum with every change of one character (CR-30)', async (t) => {
    const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_- \n'
    const token = mintApiToken(ulid)
    let missed = 0
    for (let i = 0; i < token.length; i++) {
      for (const character of alphabet) {
        if (character !== token[i] && parseApiToken(token.slice(0, i) + character + token.slice(i + 1))) missed++
      }
      if (parseApiToken(token.slice(0, i) + token.slice(i + 1))) missed++
    }
    t.equal(missed, 0)
    for (const bad of ['', token + '\n', ` ${token}`, token + '0', token.toLowerCase()]) {
      t.equal(parseApiToken(bad), undefined)
    }
  })

  t.test('choose their characters without bias', async (t) => {
    const counts = new Map<string, number>()
    for (let i = 0; i < 2000; i++) {
      for (const character of mintApiToken(ulid).slice(34, 74)) counts.set(character, (counts.get(character) ?? 0) + 1)
    }
    t.equal(counts.size, 62)
    const expected = 80_000 / 62
    let chiSquared = 0
    for (const count of counts.values()) chiSquared += (count - expected) ** 2 / expected
    t.ok(chiSquared < 150, `chi-squared ${chiSquared} of 61 degrees; the plain remainder gives about 590`)
  })
})

t.test('entity tags are strong, keyed and differ with every field', async (t) => {
  const v = server.etag
  const key = secretKey(base64(v.key))
  t.equal(makeEtag(key, ...v.fields), v.etag)
  t.match(v.etag, /^"[A-Za-z0-9_-]{22}"$/)
  t.not(makeEtag(key, 'a', 'b'), makeEtag(key, 'ab', ''))
  t.not(makeEtag(key, 'a'), makeEtag(secretKey(random(32)), 'a'))
})

t.test('passwords', async (t) => {
  t.test('are Argon2id with the OWASP minimum (CR-40)', async (t) => {
    const hash = await hashPassword('correct horse')
    t.match(hash, /^\$argon2id\$v=19\$m=19456,t=2,p=1\$/)
    t.ok(await verifyPassword(hash, 'correct horse'))
    t.notOk(await verifyPassword(hash, 'correct horsf'))
    t.notOk(await verifyPassword(hash, ''))
    t.ok(await verifyPassword(server.password.hash, server.password.password))
    t.ok(await verifyPassword(await hashPassword('ﬁancé'), 'fiance\u0301'), 'two Unicode forms are one password')
    await t.rejects(verifyPassword('no hash', 'x'))
  })

  t.test('are refused beyond 4 running and 32 waiting (CR-40)', async (t) => {
    const work = Array.from({ length: 37 }, () => verifyPassword(server.password.hash, 'x'))
    const results = await Promise.allSettled(work)
    t.equal(results.filter(({ status }) => status === 'fulfilled').length, 36)
    const last = results.at(-1)
    t.match(last, { status: 'rejected', reason: new WorkOverloaded('too many password hashes are waiting') })
  })

  t.test('that are generated are readable and have 120 bits', async (t) => {
    t.match(generatePassword(), /^([0-9a-hjkmnp-tv-z]{4}-){5}[0-9a-hjkmnp-tv-z]{4}$/)
    t.not(generatePassword(), generatePassword())
  })
})

t.test('only primitives.ts names an algorithm, and GCM always has its tag length (CR-03, CR-04)', async (t) => {
  const calls = /\b(create(Hash|Hmac|(De)?[Cc]ipher(iv)?|Sign|Verify)|(pbkdf2|hkdf|scrypt)(Sync)?|timingSafeEqual)\s*\(/
  const files = readdirSync('src', { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
  // What clients share uses WebCrypto, which a browser has too.
  for (const file of files.filter((file) => file !== join('client', 'keys.ts'))) {
    const text = readFileSync(join('src', file), 'utf8')
    if (file === join('crypto', 'primitives.ts')) {
      const ciphers = text.match(/create(Dec|C)ipheriv\(.*/g) ?? []
      t.equal(ciphers.length, 2)
      for (const line of ciphers) t.match(line, /\('aes-256-gcm', key, iv, \{ authTagLength: TAG_BYTES \}\)/)
      t.match(text, 'const TAG_BYTES = 16\n')
      t.match(text, 'const iv = nonce(IV_BYTES)\n')
    } else {
      t.notMatch(text, calls, `${file} uses src/crypto/primitives.ts`)
      t.notMatch(text, /['"`](aes-?\d+.*|sha-?(1|224|256|384|512)|md5)['"`]/i, `${file} names no algorithm`)
    }
  }
})

function vectors (name: string) {
  return JSON.parse(readFileSync(`test/vectors/${name}.json`, 'utf8'))
}

function hex (text: string): Buffer {
  return Buffer.from(text, 'hex')
}

function base64 (text: string): Buffer {
  return Buffer.from(text, 'base64')
}

/** All changes of one byte by one bit or by all bits, a missing byte, and an additional byte. */
function * manipulations (bytes: Buffer): Generator<Buffer> {
  for (const mask of [0x01, 0x80, 0xff]) {
    for (let i = 0; i < bytes.length; i++) {
      const changed = Buffer.from(bytes)
      changed[i]! ^= mask
      yield changed
    }
  }
  yield bytes.subarray(1)
  yield bytes.subarray(0, -1)
  yield Buffer.concat([bytes, Buffer.of(0)])
}

function * lists (pieces: string[], longest: number): Generator<string[]> {
  yield []
  if (longest === 0) return
  for (const piece of pieces) for (const rest of lists(pieces, longest - 1)) yield [piece, ...rest]
}

function pick (below: number): number {
  return Math.floor(Math.random() * below)
}

function caught (work: () => unknown): Error {
  try {
    work()
  } catch (error) {
    return error as Error
  }
  throw new Error('nothing was thrown')
}
