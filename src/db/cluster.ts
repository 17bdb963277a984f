/**
 * The template of the embedded database's cluster: the build makes one, with the schema in it, and every first start
 * unpacks it instead of making its own, which takes seconds and 800 MB.
 *
 * An archive is the length of its header in four bytes, the header as JSON, and the contents of all files, one after
 * the other and compressed.
 */
import fs from 'node:fs'
import path from 'node:path'
import { Readable } from 'node:stream'
import { brotliCompressSync, constants, createBrotliDecompress } from 'node:zlib'

interface Header {
  /** What the template was made of: another build makes it anew when that has changed. */
  madeOf: string
  /** Where the checksum of pg_control lies, which is at the end of what it covers. */
  checksumAt: number
  directories: string[]
  files: { name: string, size: number }[]
}

const CONTROL = 'global/pg_control'
const SEGMENT = /^pg_wal\/[0-9A-F]{24}$/
// XLogLongPageHeaderData, at the start of every file of the write-ahead log: the identifier comes after 24 bytes.
const IDENTIFIER_IN_SEGMENT = 24

/** Packs a cluster that was shut down in good order. Throws when the identifier is not where this file looks for it. */
export function packCluster (directory: string, madeOf: string): Buffer {
  const entries = fs.readdirSync(directory, { recursive: true, withFileTypes: true })
    .map((entry) =>
      ({ entry, name: path.relative(directory, path.join(entry.parentPath, entry.name)).split(path.sep).join('/') }))
    .sort((a, b) => a.name < b.name ? -1 : 1)
  const contents = entries.filter(({ entry }) => entry.isFile()).map(({ name }) =>
    ({ name, bytes: fs.readFileSync(path.join(directory, name)) }))
  const control = contents.find(({ name }) => name === CONTROL)!.bytes
  for (const { bytes } of contents.filter(({ name }) => SEGMENT.test(name))) {
    if (bytes.readBigUInt64LE(IDENTIFIER_IN_SEGMENT) !== control.readBigUInt64LE(0)) {
      throw new Error('The write-ahead log does not begin as expected')
    }
  }
  const header: Header = {
    madeOf,
    checksumAt: findChecksum(control),
    directories: entries.filter(({ entry }) => entry.isDirectory()).map(({ name }) => name),
    files: contents.map(({ name, bytes }) => ({ name, size: bytes.length }))
  }
  const head = Buffer.from(JSON.stringify(header))
  const length = Buffer.alloc(4)
  length.writeUInt32LE(head.length)
  const body = Buffer.concat(contents.map(({ bytes }) => bytes))
  return Buffer.concat([length, head, brotliCompressSync(
    body, { params: { [constants.BROTLI_PARAM_QUALITY]: 9, [constants.BROTLI_PARAM_SIZE_HINT]: body.length } }
  )])
}

/** What a template was made of; undefined when there is none. */
export function madeOf (template: string): string | undefined {
  if (!fs.existsSync(template)) return undefined
  return headerOf(fs.readFileSync(template)).madeOf
}

/**
 * Unpacks a template into a directory that must not exist yet, as a cluster with an identifier of its own. Everything
 * is on disk before it gets its name: after a kill or a power cut there is either a whole cluster or none.
 *
 * @param options.durable false for a cluster that nobody misses after a power cut
 * @param options.onProgress called for every file
 */
export async function unpackCluster (
  template: string, directory: string, {
    durable = true, onProgress = () => {}
  }: { durable?: boolean, onProgress?: () => void } = {}
): Promise<void> {
  const archive = fs.readFileSync(template)
  const { checksumAt, directories, files } = headerOf(archive)
  const identifier = newIdentifier()
  const beside = `${directory}.unpacking`
  fs.rmSync(beside, { recursive: true, force: true })
  for (const name of ['', ...directories]) fs.mkdirSync(path.join(beside, name), { mode: 0o700 })
  const contents = reader(archive.subarray(4 + archive.readUInt32LE(0)))
  for (const { name, size } of files) {
    const bytes = await contents(size)
    if (name === CONTROL) {
      bytes.writeBigUInt64LE(identifier, 0)
      bytes.writeUInt32LE(crc32c(bytes.subarray(0, checksumAt)), checksumAt)
    } else if (SEGMENT.test(name)) bytes.writeBigUInt64LE(identifier, IDENTIFIER_IN_SEGMENT)
    fs.writeFileSync(path.join(beside, name), bytes, { mode: 0o600 })
    onProgress()
  }
  // Once all is written, the system has little left to do for each.
  for (const name of durable ? [...files.map(({ name }) => name), ...directories, ''] : []) {
    sync(path.join(beside, name))
    onProgress()
  }
  fs.renameSync(beside, directory)
  if (durable) sync(path.dirname(directory))
}

/** Reads what is compressed piece by piece: what a start takes in memory, the process keeps. */
function reader (compressed: Buffer): (size: number) => Promise<Buffer> {
  const chunks: AsyncIterator<Buffer> =
    Readable.from([compressed]).pipe(createBrotliDecompress())[Symbol.asyncIterator]()
  let rest: Buffer = Buffer.alloc(0)
  return async (size) => {
    const parts = [rest]
    let length = rest.length
    while (length < size) {
      const { value, done } = await chunks.next()
      if (done) throw new Error('The template of the embedded database is cut off')
      parts.push(value)
      length += value.length
    }
    const all = Buffer.concat(parts)
    rest = all.subarray(size)
    return all.subarray(0, size)
  }
}

function headerOf (archive: Buffer): Header {
  return JSON.parse(archive.toString('utf8', 4, 4 + archive.readUInt32LE(0)))
}

function sync (place: string) {
  const handle = fs.openSync(place, 'r')
  fs.fsyncSync(handle)
  fs.closeSync(handle)
}

// As initdb makes it: the time in the upper half. It is no secret, it tells clusters apart.
const newIdentifier = () => (BigInt(Math.floor(Date.now() / 1000)) << 32n) | BigInt(Math.floor(Math.random() * 2 ** 32))

/** The one place in pg_control that holds the checksum of everything before it. */
function findChecksum (control: Buffer): number {
  const places = []
  for (let at = 8; at <= 508; at += 4) if (control.readUInt32LE(at) === crc32c(control.subarray(0, at))) places.push(at)
  if (places.length !== 1) throw new Error('pg_control does not hold its checksum')
  return places[0]!
}

/** CRC-32C, the checksum of PostgreSQL's files. */
export function crc32c (bytes: Uint8Array): number {
  let crc = 0xffffffff
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0)
  }
  return (crc ^ 0xffffffff) >>> 0
}
