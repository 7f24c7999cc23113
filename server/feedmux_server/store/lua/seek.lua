-- ARGV: position, cluster_time, order, until_ms
local too_late = late(ARGV[4])
if too_late then return too_late end
local stored = read('epoch', 'deleted')
if absent(stored[1], stored[2]) then return not_found(stored[2]) end
if foreign() then return {'DAMAGED'} end
local now = now_ms()
redis.call('HDEL', key, 'delivered')
local epoch = int(next_epoch(stored[1], now))
redis.call('HSET', key,
  'position', ARGV[1], 'cluster_time', ARGV[2], 'order', ARGV[3], 'epoch', epoch, 'seek_epoch', epoch,
  'nonce', '', 'owner', '', 'lease_until_ms', '0', 'fence_cause', 'SEEK', 'update_ms', int(now))
return answer('OK', now)
