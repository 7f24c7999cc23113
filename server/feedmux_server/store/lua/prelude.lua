-- Put in front of every script. One key per script: the hash of a subscription.
-- Numbers that do not fit a double exactly (cluster time) are zero-padded decimal strings.
-- A hash with the field `deleted` is a tombstone: it keeps the epoch, so that no later epoch is lower.
local key = KEYS[1]

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function int(number)
  return string.format('%.0f', number)
end

-- The number of fields; nil if the key holds something that is not a hash. The documented permissions allow no TYPE.
local function size()
  local fields = redis.pcall('HLEN', key)
  if type(fields) == 'number' then return fields end
  -- A subscription that this user may not read, for example, is none that may be replaced.
  if not string.find(fields.err, 'WRONGTYPE', 1, true) then redis.call('HLEN', key) end
end

local function foreign()
  return not size()
end

-- The values of fields. Something that is not a hash has none.
local function read(...)
  return foreign() and {} or redis.call('HMGET', key, ...)
end

-- A whole number that is at most the last millisecond of the year 9999, which a double holds exactly; nil for anything
-- that feedmux would not have written. Epochs are times or little more.
local function number(text)
  if not text or #text > 15 or not string.find(text, '^%d+$') then return nil end
  local value = tonumber(text)
  return value <= 253402300799999 and value or nil
end

-- The answer to a caller that has given up: the caller said how long it waits, by the clock of this Redis.
local function late(until_ms)
  local now = now_ms()
  if now > tonumber(until_ms) then return {'LATE', int(now)} end
end

-- At least Redis TIME, so that a Redis that lost its last writes does not give out an epoch twice.
local function next_epoch(stored, now)
  return math.max((number(stored) or 0) + 1, now)
end

-- Older versions stored megabytes as `order`, if the `_id` of a document had them. The beginning sorts before the whole.
local order_bytes = 4096

local function answer(status, now)
  local fields = foreign() and {} or redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if fields[i] == 'order' then fields[i + 1] = string.sub(fields[i + 1], 1, order_bytes) end
  end
  return {status, int(now), fields}
end

-- Whether there is no subscription. A subscription without an epoch is damaged, but not absent.
local function absent(epoch, deleted)
  return deleted or not epoch and size() == 0
end

-- Says whether a tombstone is still there: the subscription was deleted, and not lost.
local function not_found(deleted)
  return {'NOT_FOUND', deleted and 'DELETED' or ''}
end

-- Cluster times have one width, so that they compare as strings.
local function is_cluster_time(text)
  return text and #text == 20 and string.find(text, '^%d+$')
end

-- Whether a subscription lacks what a session needs and cannot get elsewhere, or has a number that feedmux would not
-- have written: feedmux writes all fields at once.
local function damaged()
  if not is_cluster_time(read('cluster_time')[1]) then return true end
  for _, field in ipairs({'definition', 'etag', 'position', 'order'}) do
    if redis.call('HEXISTS', key, field) == 0 then return true end
  end
  local numbers = {'epoch', 'seek_epoch', 'commit_epoch', 'lease_until_ms', 'used_ms', 'create_ms', 'update_ms', 'members'}
  for _, field in ipairs(numbers) do
    local stored = redis.call('HGET', key, field)
    if stored and not number(stored) then return true end
  end
  return false
end

-- Replaces what the key holds, perhaps a tombstone, by these fields of a subscription. The key stays meanwhile: while a
-- cluster moves a slot, a key that is gone belongs to the other node, and the rest of the script would fail. PERSIST
-- before HDEL: a user that may not run it leaves a tombstone, and no subscription that expires.
local function replace(...)
  if foreign() then redis.call('DEL', key) end
  local former, written = redis.call('HKEYS', key), {}
  redis.call('HSET', key, ...)
  for i = 1, select('#', ...), 2 do written[select(i, ...)] = true end
  if #former > 0 then redis.call('PERSIST', key) end
  for _, field in ipairs(former) do
    if not written[field] then redis.call('HDEL', key, field) end
  end
end

-- Replaces the subscription by a tombstone. The key stays, as above. HDEL first: a Redis that is out of memory allows
-- HDEL, and then the rest of the script.
local function bury(epoch, tombstone_ms)
  if foreign() then redis.call('DEL', key) end
  local fields = redis.call('HKEYS', key)
  for i = 2, #fields do redis.call('HDEL', key, fields[i]) end
  redis.call('HSET', key, 'deleted', '1', 'epoch', epoch)
  if fields[1] and fields[1] ~= 'epoch' then redis.call('HDEL', key, fields[1]) end
  redis.call('PEXPIRE', key, tombstone_ms)
end

-- Compares bytes, because the `<` of Lua follows the locale of the Redis process.
local function before(a, b)
  if a == b then return false end
  local shorter = math.min(#a, #b)
  for i = 1, shorter do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
