-- ARGV: epoch, nonce, lease_ms, delivered, members (of a group, else '')
--   [, position, cluster_time, order, moves_back_from (the position that it may be before, or '')]
-- Never creates a hash. A stored epoch below the caller's means that Redis lost the caller's open: MISSING too, as for
-- a hash that was damaged since.
local stored = read('epoch', 'nonce', 'deleted', 'fence_cause', 'cluster_time', 'order', 'position', 'etag')

-- Why this session was fenced. What ends it for good counts, whatever came after that. No takeover ends a group for
-- good: its members move to the next host, and must know what a seek has made void.
local function cause(mine)
  local causes = ARGV[5] == '' and {'DELETE', 'TAKEOVER', 'SEEK'} or {'DELETE', 'SEEK', 'TAKEOVER'}
  for _, each in ipairs(causes) do
    if mine < (number(read(string.lower(each) .. '_epoch')[1]) or 0) then return each end
  end
  return stored[4] or 'LEASE'
end

local epoch, mine = number(stored[1]), tonumber(ARGV[1])
if not epoch or epoch < mine then return {'MISSING'} end
if stored[3] then return {'FENCED', 'DELETE'} end
if epoch ~= mine or stored[2] ~= ARGV[2] then return {'FENCED', cause(mine)} end
local whole = is_cluster_time(stored[5]) and stored[6] and stored[7] and stored[8]
if not whole or redis.call('HEXISTS', key, 'definition') == 0 then return {'MISSING'} end
local lease_until = int(now_ms() + tonumber(ARGV[3]))
if ARGV[5] ~= '' then redis.call('HSET', key, 'members', ARGV[5]) end
if not ARGV[6] then
  redis.call('HSET', key, 'lease_until_ms', lease_until, 'delivered', ARGV[4])
  return {'OK', stored[7]}
end
-- Not from another position: Redis may run an abandoned try after what followed its repetition.
if ARGV[9] ~= '' and ARGV[9] == stored[7] then
  -- As after a seek, no client's last ack may lead back to the position that MongoDB no longer has.
  redis.call('HSET', key, 'seek_epoch', ARGV[1])
  stored[5], stored[6] = '', ''
end
-- Cluster times have one width, so a time and its order compare as one string.
if before(stored[5] .. stored[6], ARGV[7] .. ARGV[8]) then
  redis.call('HSET', key, 'lease_until_ms', lease_until, 'delivered', ARGV[4],
    'position', ARGV[6], 'cluster_time', ARGV[7], 'order', ARGV[8], 'commit_epoch', ARGV[1])
  return {'OK', ARGV[6]}
end
redis.call('HSET', key, 'lease_until_ms', lease_until, 'delivered', ARGV[4])
return {'OK', stored[7]}
